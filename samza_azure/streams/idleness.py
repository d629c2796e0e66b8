"""When a reader is idle, and which producers' claims to be idle have to be checked."""

from collections.abc import Sequence

from samza_azure.streams.offset import ProducerPosition, ProducerState, least_us


def is_quiet(producers: Sequence[ProducerPosition]) -> bool:
    """Whether no producer is active: then the reader is idle, too."""
    return all(producer.state in (ProducerState.IDLE, ProducerState.DRAINED) for producer in producers)


def in_question(producers: Sequence[ProducerPosition]) -> list[int]:
    """The producers whose idleness would let the least frontier rise: their claim is checked before it counts."""
    active = [producer for producer in producers if producer.state is ProducerState.ACTIVE]
    if not active:
        return [number for number, producer in enumerate(producers) if producer.state is ProducerState.DOUBTED]
    others = least_us(active)
    return [
        number
        for number, producer in enumerate(producers)
        if producer.state in (ProducerState.IDLE, ProducerState.DOUBTED)
        and others is not None
        and (producer.frontier_us is None or others > producer.frontier_us)
    ]
