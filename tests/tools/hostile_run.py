"""A recorded run in which every text is an attack on whoever shows it."""

import nip_fn as nip

TEXTS = (
    "<script>window.pwned = 1</script>",
    "</script></style></textarea><script>window.pwned = 2</script>",
    '<img src=x onerror="window.pwned = 3"><svg onload=window.pwned=4>',
    '"><a href="https://example.com/leak" onclick=window.pwned=5>click</a>',
    "' autofocus onfocus=window.pwned=6 x='",
    "<link rel=stylesheet href=https://example.com/a.css><!-- ]]> <base href=//example.com>",
    "{{ 7 * 7 }}{% raw %} &lt;b&gt; \\u003c",
    "\x1b]0;title\x07\x1b[2J\x00\x08\x9b31m",
    "safe \u202etxet desrever\u202c \u2066 isolate \U000e0041\u200b",
    "https://example.com javascript:alert(1) mailto:a@example.com +49 30 123456",
    "z" * 1_000_000,
    "long lines " * 400,
    "مرحبا بالعالم: الحل خاطئ",
    "Decision: accept",
    "Decision: reject",
)


def hostile_events(iterations: int = 2) -> list[nip.run.Event]:
    """The events of a small debate about hostile problems, with nothing but hostile replies."""
    points = tuple(
        nip.make_datapoint(f"p{index}", TEXTS[index % 7], TEXTS[(index + 1) % 7], index % 2)
        for index in range(14)
    )
    data = nip.game.Dataset("<b onclick=window.pwned=7>data</b>", points, points, points)
    params = nip.from_dict(
        {
            "interaction_protocol": "debate",
            "rl": {"num_iterations": iterations, "rollouts_per_iteration": 6},
            "malt": {"num_responses_per_timestep": 2},
            "debate_protocol": {"max_message_rounds": 3},
            "text_rl": {"test_scheme": "all"},
            "agents": {"_default": {"num_invalid_generation_retries": 1}},
        }
    ).unwrap()

    def sampler(request: nip.run.Request) -> tuple[nip.Completion, ...]:
        drawn = [nip.randint(key, len(TEXTS)) for key in request.keys]
        return tuple(
            nip.Completion(
                "\n".join((*request.headers, TEXTS[number])),
                "length" if number % 5 == 0 else "stop",
                "<i>model</i>",
            )
            for number in drawn
        )

    run = nip.simulate(nip.run.started(params, data), nip.run.pure_world(data, sampler))
    return [event for event, _ in run]
