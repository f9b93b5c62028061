"""What is expected of a drafter that the workers run."""

from slipstream.engine.core.device_drafter import DeviceDrafter


def first_token(drafter: DeviceDrafter) -> float:
    return drafter.expected_survival(["new"])["new"][0]


def write(drafter: DeviceDrafter, accepted: int, drafts: int) -> None:
    """Let it draft a token for so many requests, of which these are accepted."""
    for number in range(drafts):
        drafter.learn(str(number), 1, int(number % 10 < accepted))
        drafter.forget(str(number))


def test_other_texts_are_noticed_within_some_steps() -> None:
    """Chats after records in JSON: twenty steps with eight requests each."""
    drafter = DeviceDrafter("draft_model", 4)
    write(drafter, 9, 1000)
    assert first_token(drafter) > 0.8
    write(drafter, 4, 160)
    assert first_token(drafter) < 0.55


def test_after_a_rest_they_are_noticed_sooner() -> None:
    drafter = DeviceDrafter("draft_model", 4)
    write(drafter, 9, 1000)
    drafter.return_from_rest()
    assert first_token(drafter) > 0.8
    write(drafter, 4, 40)
    assert first_token(drafter) < 0.6
