"""The rooms that need more than one line to build."""

from __future__ import annotations

from app.api.body import BodyLimits
from app.api.delivery import Delivery, ServerLoad
from app.api.door import Door
from app.api.faults import Faults
from app.api.identity import Identity, pod_headers
from app.api.models import ServedModels
from app.api.outbox import Outbox
from app.api.translation import Translation
from app.ground import Ground
from app.metrics.fake import FakeFamilies
from app.protocol.model_limits import ModelLimits
from app.serving.residents import Residents
from app.serving.service import Service
from app.simulation.author import Author
from app.simulation.latency import Latency
from app.simulation.pacer import Pacer
from app.simulation.performer import Simulation
from app.simulation.text import Phrasebook, sample_sentences

UNKNOWN_VOCABULARY = 2**31
"""Size assumed when a remote tokenizer does not tell its own."""


def service_of(ground: Ground) -> Service:
    """The simulation behind its places."""
    settings, streams, limits = ground.settings, ground.streams, ground.settings.scheduling
    latency = Latency(settings.latency, limits.max_num_seqs, lambda: service.running, streams("latency"))
    ground.live.subscribe(lambda now: latency.change(now.latency))
    author = author_of(ground)
    pacer = Pacer(ground.clock)
    service = Service(
        Simulation(author, ground.tokenizer, latency, pacer, ground.clock),
        ground.recorder,
        ground.clock,
        limits.max_num_seqs,
        limits.max_waiting_queue_length,
        limits.max_num_queued_reqs,
        Residents(settings.lora.max_loras, ground.adapters.__contains__),
        limits.scheduling_policy == "priority",
    )
    return service


def author_of(ground: Ground) -> Author:
    """Who writes the replies."""
    phrasebook = Phrasebook(ground.tokenizer, sample_sentences())
    author = Author(
        ground.settings,
        ground.tokenizer,
        phrasebook,
        ground.datasets,
        ground.schemas,
        ground.streams("text"),
        ground.streams("calls"),
    )
    ground.live.subscribe(author.change)
    return author


def door_of(ground: Ground, service: Service, identity: Identity, load: ServerLoad, faults: Faults) -> Door:
    """What the generating API families share."""
    settings, model, api = ground.settings, ground.settings.model, ground.settings.api
    server, tokenizer = ground.server, ground.tokenizer
    translation = Translation(settings, ground.adapters, ground.schemas, ground.streams("images"))
    ground.live.subscribe(translation.change)
    return Door(
        body=BodyLimits(server.max_request_body_size_mb << 20, server.read_timeout),
        models=ServedModels(model.served_names, model.model, model.max_model_len, ground.adapters),
        tokenizer=tokenizer,
        identity=identity,
        delivery=Delivery(service, load, pod_headers(server), Outbox(), server.write_timeout),
        translation=translation,
        faults=faults,
        limits=ModelLimits(
            max_model_len=model.max_model_len,
            vocab_size=tokenizer.vocab_size or UNKNOWN_VOCABULARY,
            max_logprobs=api.max_logprobs,
            reasons=bool(settings.reply.reasoning_parser),
        ),
        force_usage=api.enable_force_include_usage,
        prompt_details=api.enable_prompt_tokens_details,
        rank=ground.rank,
        encoder_only=model.mm_encoder_only,
        omni=model.omni,
        keeps_turns=bool(ground.datasets),
    )


def fakes_of(ground: Ground) -> FakeFamilies:
    """The metrics that are told instead of the true ones, if any are."""
    model, lora = ground.settings.model, ground.settings.lora
    fakes = FakeFamilies(
        model.served_names[0],
        model.max_model_len,
        {},
        lora.max_loras,
        str(ground.rank),
        clock=ground.clock.now,
    )
    ground.live.subscribe(fakes.follow)
    return fakes
