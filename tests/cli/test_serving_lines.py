"""What `nip-fn serve` says of itself: its state in few lines, and who may use it."""

import pwd

from nip_fn_adapters.serving.wire import AdapterInfo, Machine, VllmStatus
from nip_fn_cli.commands.serve import other_users
from nip_fn_cli.commands.status import Told, lines_of


def account(name: str, user: int, shell: str = "/bin/sh") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", user, user, "", f"/home/{name}", shell))


def test_of_many_adapters_that_are_not_served_a_few_are_listed() -> None:
    uploads = [AdapterInfo(f"upload-{number:02}", 1 << 20, ()) for number in range(30)]
    served = AdapterInfo("verifier-3", 1 << 20, ("run-verifier",))
    told = Told(VllmStatus("online"), Machine(1.0, 2.0, 3.0), [], [*uploads, served])
    adapters = [line[1:] for line in lines_of(told)][-7:]
    assert adapters[0] == ("verifier-3", "answers for run-verifier; 1.0 MiB")
    assert [name for name, _ in adapters[1:6]] == [f"upload-0{number}" for number in range(5)]
    assert adapters[6] == ("25 more", "replaced, or not served; 25.0 MiB")


def test_other_people_are_those_who_can_log_in() -> None:
    accounts = [
        account("root", 0),
        account("daemon", 1, "/usr/sbin/nologin"),
        account("me", 1000),
        account("alice", 1001),
        account("printer", 1002, "/bin/false"),
        account("nobody", 65534),
    ]
    assert other_users(accounts, 1000) == ["alice"]
    assert other_users(accounts, 1001) == ["me"]
