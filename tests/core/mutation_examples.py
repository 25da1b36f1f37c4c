"""Programs for the tests of the mutants.

`EXAMPLES` has, for each operator, a program and all that the operator makes of it; `HARD` has
programs in which the places of things are hard to get right.
"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "range_bound": (
        "for i in range(1, n + 1): f(i)",
        "for i in range(2, n + 1): f(i)",
        "for i in range(1, n): f(i)",
        "for i in range(1, n + 2): f(i)",
        "for i in range(n + 1): f(i)",
    ),
    "slice_bound": (
        "f(a[i:-1])",
        "f(a[i - 1:-1])",
        "f(a[i + 1:-1])",
        "f(a[i:-2])",
    ),
    "slice_bound_dropped": (
        "f(a[i:j:2])",
        "f(a[:j:2])",
        "f(a[i::2])",
        "f(a[i:j])",
    ),
    "reversal_dropped": (
        "f(a[::-1], reversed(b))",
        "f(a, reversed(b))",
        "f(a[::-1], b)",
    ),
    "index_shifted": (
        "f(a[0], b[-1], d[key], [c[i + 1] for i in range(3)])",
        "f(a[-1], b[-1], d[key], [c[i + 1] for i in range(3)])",
        "f(a[1], b[-1], d[key], [c[i + 1] for i in range(3)])",
        "f(a[0], b[-2], d[key], [c[i + 1] for i in range(3)])",
        "f(a[0], b[0], d[key], [c[i + 1] for i in range(3)])",
        "f(a[0], b[-1], d[key], [c[i] for i in range(3)])",
        "f(a[0], b[-1], d[key], [c[i + 2] for i in range(3)])",
    ),
    "initial_value": (
        "best = xs[0]\nlow = float('inf')\nn = 0\nseen = None",
        "best = 0\nlow = float('inf')\nn = 0\nseen = None",
        "best = xs[0]\nlow = 0\nn = 0\nseen = None",
        "best = xs[0]\nlow = float('inf')\nn = 1\nseen = None",
        "best = xs[0]\nlow = float('inf')\nn = 0\nseen = 0",
    ),
    "mutable_default": (
        "def f(a, b=None, *, c=None):\n    if b is None:\n        b = []\n    return b",
        "def f(a, b=[], *, c=None):\n    if b is None:\n        b = []\n    return b",
    ),
    "append_at_front": (
        "a.append(x)\nb.insert(0, y)",
        "a.insert(0, x)\nb.insert(0, y)",
        "a.append(x)\nb.append(y)",
    ),
    "pop_end": (
        "f(a.pop(), b.pop(0), c.pop(k))",
        "f(a.pop(0), b.pop(0), c.pop(k))",
        "f(a.pop(), b.pop(), c.pop(k))",
    ),
    "sort_reversed": (
        "a.sort()\nf(sorted(b, key=g), sorted(c, reverse=True))",
        "a.sort(reverse=True)\nf(sorted(b, key=g), sorted(c, reverse=True))",
        "a.sort()\nf(sorted(b, key=g, reverse=True), sorted(c, reverse=True))",
        "a.sort()\nf(sorted(b, key=g), sorted(c))",
    ),
    "key_dropped": (
        "f(max(a, key=g), min(b, default=0))",
        "f(max(a), min(b, default=0))",
        "f(max(a, key=g), min(b))",
    ),
    "default_dropped": (
        "f(d.get(k, 0), enumerate(a, 1), s.split(','), t.split())",
        "f(d.get(k), enumerate(a, 1), s.split(','), t.split())",
        "f(d.get(k, 0), enumerate(a), s.split(','), t.split())",
        "f(d.get(k, 0), enumerate(a, 1), s.split(), t.split())",
        "f(d.get(k, 0), enumerate(a, 1), s.split(','), t.split(' '))",
    ),
    "copy_dropped": (
        "f(a[:], list(b), list(map(g, c)))",
        "f(a, list(b), list(map(g, c)))",
        "f(a[:], b, list(map(g, c)))",
    ),
    "method_dropped": (
        "f(s.lower(), t.copy(), u.items())",
        "f(s, t.copy(), u.items())",
        "f(s.lower(), t, u.items())",
    ),
    "call_dropped": (
        "f(abs(x), sorted(y), set(z), len(a))",
        "f(x, sorted(y), set(z), len(a))",
        "f(abs(x), y, set(z), len(a))",
        "f(abs(x), sorted(y), z, len(a))",
    ),
    "function_swapped": (
        "f(min(a), any(b), math.floor(c), m.floor(d))",
        "f(max(a), any(b), math.floor(c), m.floor(d))",
        "f(min(a), all(b), math.floor(c), m.floor(d))",
        "f(min(a), any(b), math.ceil(c), m.floor(d))",
    ),
    "method_swapped": (
        "f(s.find(t), s.startswith(u))",
        "f(s.rfind(t), s.startswith(u))",
        "f(s.find(t), s.endswith(u))",
    ),
    "arguments_swapped": (
        "f(a, b, *c)\nmax(a, b)",
        "f(b, a, *c)\nmax(a, b)",
    ),
    "comparison_boundary": (
        "f(a < b, a >= b, a == b)",
        "f(a <= b, a >= b, a == b)",
        "f(a < b, a > b, a == b)",
    ),
    "comparison_direction": (
        "f(a < b, a >= b)",
        "f(a > b, a >= b)",
        "f(a < b, a <= b)",
    ),
    "comparison_negated": (
        "f(a == b, a < b, a not  in b, a is b)",
        "f(a != b, a < b, a not  in b, a is b)",
        "f(a == b, a >= b, a not  in b, a is b)",
        "f(a == b, a < b, a in b, a is b)",
        "f(a == b, a < b, a not  in b, a is not b)",
    ),
    "comparison_dropped": (
        "f(a <= b < c)",
        "f(a <= b)",
        "f(b < c)",
    ),
    "arithmetic_operator": (
        "f(a + b, a * b, 'x' + y, (a - b) * c)",
        "f(a - b, a * b, 'x' + y, (a - b) * c)",
        "f(a + b, a // b, 'x' + y, (a - b) * c)",
        "f(a + b, a + b, 'x' + y, (a - b) * c)",
        "f(a + b, a * b, 'x' + y, (a - b) // c)",
        "f(a + b, a * b, 'x' + y, (a - b) + c)",
        "f(a + b, a * b, 'x' + y, (a + b) * c)",
    ),
    "augmented_operator": (
        "a += b\nc //= d\ns += 'x'",
        "a -= b\nc //= d\ns += 'x'",
        "a = b\nc //= d\ns += 'x'",
        "a += b\nc /= d\ns += 'x'",
        "a += b\nc *= d\ns += 'x'",
        "a += b\nc = d\ns += 'x'",
        "a += b\nc //= d\ns = 'x'",
    ),
    "operands_swapped": (
        "f(a - b, (a + b) // c, 'x' + y, a + b)",
        "f(b - a, (a + b) // c, 'x' + y, a + b)",
        "f(a - b, c // (a + b), 'x' + y, a + b)",
        "f(a - b, (a + b) // c, y + 'x', a + b)",
    ),
    "negation_dropped": (
        "f(-a)",
        "f(a)",
    ),
    "division_rounded": (
        "f(a // b)",
        "f(round(a / b))",
    ),
    "boolean_operator": (
        "f(a and b, c or d and e)",
        "f(a or b, c or d and e)",
        "f(a and b, c and d and e)",
        "f(a and b, c or d or e)",
    ),
    "operand_dropped": (
        "f(a and b and c)\ng = (x or y) and z",
        "f(a and b)\ng = (x or y) and z",
        "f(a and c)\ng = (x or y) and z",
        "f(b and c)\ng = (x or y) and z",
        "f(a and b and c)\ng = x or y",
        "f(a and b and c)\ng = z",
        "f(a and b and c)\ng = x and z",
        "f(a and b and c)\ng = y and z",
    ),
    "not_dropped": (
        "f(not a, not (b or c))",
        "f(a, not (b or c))",
        "f(not a, b or c)",
    ),
    "condition_negated": (
        "while a and b: c()\nif d(): e()\nf([x for x in y if x])\nif not g: h()",
        "while not (a and b): c()\nif d(): e()\nf([x for x in y if x])\nif not g: h()",
        "while a and b: c()\nif not d(): e()\nf([x for x in y if x])\nif not g: h()",
        "while a and b: c()\nif d(): e()\nf([x for x in y if not x])\nif not g: h()",
    ),
    "branches_swapped": (
        "f(a if b else c)",
        "f(c if b else a)",
    ),
    "while_once": (
        "while a: b()\nwhile c:\n    break",
        "if a: b()\nwhile c:\n    break",
    ),
    "increment_dropped": (
        "f(n + 1, n - 1, n + 2)",
        "f(n, n - 1, n + 2)",
        "f(n + 1, n, n + 2)",
    ),
    "integer_off_by_one": (
        "f(5, 0, n + 1, n // 2)\nif n > 3: g()",
        "f(6, 0, n + 1, n // 2)\nif n > 3: g()",
        "f(4, 0, n + 1, n // 2)\nif n > 3: g()",
        "f(5, 1, n + 1, n // 2)\nif n > 3: g()",
        "f(5, -1, n + 1, n // 2)\nif n > 3: g()",
        "f(5, 0, n + 2, n // 2)\nif n > 3: g()",
        "f(5, 0, n + 1, n // 3)\nif n > 3: g()",
        "f(5, 0, n + 1, n // 2)\nif n > 4: g()",
    ),
    "boolean_flipped": (
        "f(True)",
        "f(False)",
    ),
    "float_changed": (
        "f(0.5, 1.5)",
        "f(1.5, 1.5)",
        "f(0.5, 0.5)",
    ),
    "string_changed": (
        "f('', ' ', 'aeiou', 'x', d['key'], r'\\d+')",
        "f(' ', ' ', 'aeiou', 'x', d['key'], r'\\d+')",
        "f('', '', 'aeiou', 'x', d['key'], r'\\d+')",
        "f('', ' ', 'aeio', 'x', d['key'], r'\\d+')",
    ),
    "guard_dropped": (
        "for x in y:\n    if x:  # no\n        continue\n    f(x)",
        "for x in y:\n    f(x)",
    ),
    "statement_dropped": (
        "for x in y:\n    f(x); g(x)\n    n += 1\nif z: h()",
        "for x in y:\n    g(x)\n    n += 1\nif z: h()",
        "for x in y:\n    f(x)\n    n += 1\nif z: h()",
        "for x in y:\n    f(x); g(x)\nif z: h()",
        "for x in y:\n    f(x); g(x)\n    n += 1\nif z: pass",
    ),
    "update_dropped": (
        "a = 1\nwhile b(a):\n    c = a\n    a = d(c)  # next",
        "a = 1\nwhile b(a):\n    c = a\n",
    ),
    "jump_swapped": (
        "for x in y:\n    if x: break\n    continue",
        "for x in y:\n    if x: continue\n    continue",
        "for x in y:\n    if x: break\n    break",
    ),
    "else_dropped": (
        "if a:\n    b()\nelif c:\n    d()\nelse:\n    e()\nf()",
        "if a:\n    b()\nf()",
        "if a:\n    b()\nelif c:\n    d()\nf()",
    ),
    "elif_to_if": (
        "if a:\n    b()\nelif c:\n    d()\nelse:\n    e()\nf()",
        "if a:\n    b()\nif c:\n    d()\nelse:\n    e()\nf()",
    ),
    "indented": (
        "def f(xs):\n    for x in xs:\n        g(x)\n    return h()",
        "def f(xs):\n    for x in xs:\n        g(x)\n        return h()",
    ),
    "dedented": (
        "def f(xs):\n    for x in xs:\n        g(x)\n        h(x)\n    return xs",
        "def f(xs):\n    for x in xs:\n        g(x)\n    h(x)\n    return xs",
    ),
    "statements_swapped": (
        "a = b = 0\na = b + 1\nb = a + 1\nf(b)",
        "a = b = 0\nb = a + 1\na = b + 1\nf(b)",
        "a = b = 0\na = b + 1\nf(b)\nb = a + 1",
    ),
    "assignment_split": (
        "while c(a):\n    a, b = b, a + b\n    x, y = 1, 2",
        "while c(a):\n    a = b\n    b = a + b\n    x, y = 1, 2",
    ),
    "wrong_variable": (
        "def f(low, high, text):\n    middle = (low + high) // 2\n    return middle - low",
        "def f(low, high, text):\n    middle = (high + high) // 2\n    return middle - low",
        "def f(low, high, text):\n    middle = (low + low) // 2\n    return middle - low",
        "def f(low, high, text):\n    middle = (low + high) // 2\n    return low - low",
        "def f(low, high, text):\n    middle = (low + high) // 2\n    return middle - high",
        "def f(low, high, text):\n    middle = (low + high) // 2\n    return middle - middle",
    ),
}

HARD = {
    "windows": (
        "def f(a):\r\n    b = a  # één\r\n    if a < 1:\r\n        return 0\r\n    return b + 1\r\n"
    ),
    "old mac": "a = 1\rif a < 2:\r    f(a)\r    g(a)\r",
    "tabs": "def f(a):\n\tfor x in a:\n\t\tif x:\n\t\t\treturn 1\n\t\tg(x)\n\treturn 2",
    "form feed": "def f(a):\n    b = 1\n\x0c\n    return a + b\n",
    "continued": "def f(a, b):\n    return a \\\n        < b\n",
    "f-string": "def f(a, b):\n    c = f'{a + 1:>{b - 1}}' f'{a < b}' + str(a - b)\n    return c\n",
    "semicolons": "def f(a): a += 1; g(a); return a - 1",
    "one line": "def f(a):\n    if a > 1: return 1\n    else: return 2 - a",
    "decorated": "@cache(size=1 + 2)\ndef f(a: int = 3, *b: 'x' + 'y') -> 1 + 1:\n    return a - 1",
    "lambda": "f = lambda a, b=2: (a - b, a[0])\ng = sorted(f, key=lambda x: -x[1])",
    "match": (
        "def f(a):\n    match a:\n        case [1, *rest] if rest and a[0] > 2:\n"
        "            return rest[0] - 1\n        case {'x': y, **z}:\n            return y + 1\n"
    ),
    "walrus": (
        "def f(a):\n    while (n := len(a)) > 3 and (b := n - 1):\n        a.pop()\n"
        "    return [y for x in a if (y := x - 1)]"
    ),
    "async": (
        "async def f(a):\n    async for x in a:\n        await x.lower()\n"
        "        async with b as c:\n            yield x - 1\n    await g(1)\n"
    ),
    "not ascii": "def f(é, ü):\n    s = '🎉ö'; t = s + 'é'; return é - ü if é < ü else t[1:]\n",
    "generators": (
        "f(sum(x for x in a if x) + max((x - 1 for x in a), default=0),\n    sorted(x for x in a))"
    ),
    "parentheses": "def f(a, b):\n    return ((a - b)) * (a + b) - ((a) // (b - 1)) + -(a ** 2)\n",
    "many lines": (
        "if (\n    a < b  # first <\n    and b  # and <\n    # not < and\n    <  # here\n"
        "    a + 1\n    or not (a in b)\n):\n    f(\n        a\n        - b,  # one\n"
        "        b,\n    )\n"
    ),
    "glued": "x = not(a)\nif(a and b):pass\nwhile(x):x-=1\ny=-(a-b)",
    "try": (
        "def f(a):\n    try:\n        g(a)\n        h(a)\n    except (A, B) as e:\n"
        "        return -1\n    else:\n        return 0\n    finally:\n        a.close()\n"
    ),
    "class": "class A:\n    n = 3\n    def f(self, a):\n        self.n += a\n        return self.n",
}
