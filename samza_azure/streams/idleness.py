"""When a reader is idle, and which producers' claims to be idle have to be checked."""

from collections.abc import Sequence

from samza_azure.streams.offset import Place, State, least_us


def is_quiet(places: Sequence[Place]) -> bool:
    """Whether no producer is active: then the reader is idle, too."""
    return all(place.state in (State.IDLE, State.DRAINED) for place in places)


def in_question(places: Sequence[Place]) -> list[int]:
    """The producers whose idleness would let the least frontier rise: their claim is checked before it counts."""
    active = [place for place in places if place.state is State.ACTIVE]
    if not active:
        return [number for number, place in enumerate(places) if place.state is State.DOUBTED]
    others = least_us(active)
    return [
        number
        for number, place in enumerate(places)
        if place.state in (State.IDLE, State.DOUBTED)
        and others is not None
        and (place.frontier_us is None or others > place.frontier_us)
    ]
