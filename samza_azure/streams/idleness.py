"""When a reader is idle, and which producers' claims to be idle have to be checked."""

from collections.abc import Sequence

from samza_azure.streams.offset import ProducerPosition, ProducerState, least_us


def is_quiet(places: Sequence[ProducerPosition]) -> bool:
    """Whether no producer is active: then the reader is idle, too."""
    return all(place.state in (ProducerState.IDLE, ProducerState.DRAINED) for place in places)


def in_question(places: Sequence[ProducerPosition]) -> list[int]:
    """The producers whose idleness would let the least frontier rise: their claim is checked before it counts."""
    active = [place for place in places if place.state is ProducerState.ACTIVE]
    if not active:
        return [number for number, place in enumerate(places) if place.state is ProducerState.DOUBTED]
    others = least_us(active)
    return [
        number
        for number, place in enumerate(places)
        if place.state in (ProducerState.IDLE, ProducerState.DOUBTED)
        and others is not None
        and (place.frontier_us is None or others > place.frontier_us)
    ]
