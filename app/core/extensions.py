"""The contract between the core and its extensions.

An extension is a package of `app.extensions` with one subclass of `Extension`, which
`app.core.built_in` finds. The package imports little: every server imports it to ask whether the
settings enable it. The methods of an enabled extension import everything else. All hooks are called
once, while the application is built, so no request passes through this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from _typeshed.wsgi import WSGIApplication
    from gunicorn.glogging import Logger
    from tokenizers import Tokenizer as Backend

    from app.core.api.chat.media import MediaReader
    from app.core.api.fault import FaultInjection, RequestFacts
    from app.core.api.peer_ranks import PeerRanks
    from app.core.api.pipeline import RequestPipeline
    from app.core.api.plain import PlainGeneration
    from app.core.api.reply_rules import ReplyRules
    from app.core.api.sampling import RealModel
    from app.core.api.weight_spans import Weights
    from app.core.base import Bounded
    from app.core.base.background import BackgroundLoops
    from app.core.base.clock.clock import Clock
    from app.core.base.clock.random_streams import Streams
    from app.core.base.metrics.instruments import Families
    from app.core.base.metrics.recorder import Recorder
    from app.core.engine.client import EngineClient
    from app.core.engine.constraints import Constraints
    from app.core.engine.engine import Engine, Search
    from app.core.engine.kvcache.cache import KVCacheManager
    from app.core.engine.kvcache.events import EventSource
    from app.core.engine.kvcache.publisher import Publisher
    from app.core.engine.kvcache.publishing import PublisherSettings
    from app.core.engine.lifecycle import Operations
    from app.core.engine.lora import AdapterMemory, LoRARegistry
    from app.core.engine.pausable import PausableEngine
    from app.core.engine.profile import Profile
    from app.core.engine.request import EngineRequest, ScriptedReply
    from app.core.engine.scheduling_policy import MakePolicies
    from app.core.engine.simulated.model import RecordedReplies
    from app.core.engine.step_cost import CostModel
    from app.core.engine.tool_replies import ToolReplies
    from app.core.server.flask.application import BackgroundService, Understudy
    from app.core.server.gunicorn.arbiter import EngineProcess
    from app.core.server.http.body_limits import BodyLimits
    from app.core.server.http.fault import Fault
    from app.core.server.http.route import PlainHandler, Route
    from app.core.server.http.rpc import RpcHandlers, RpcService
    from app.core.server.middleware.api_keys import ApiKeys
    from app.core.server.middleware.stack import Middleware
    from app.core.text.base import Tokenizer
    from app.core.text.files import TokenizerFolder
    from config import Settings as AllSettings
    from config.declaration import Section
    from config.settings import ServerSettings
    from config.validation import LiveSettings

    WsgiWrapper = Callable[[WSGIApplication], WSGIApplication]

ExtensionT = TypeVar("ExtensionT", bound="Extension")


class Position(Enum):
    """Places of middleware among that of the core, from the outermost to the innermost."""

    OUTSIDE = "outside of the request ids and of authentication"
    AUTHENTICATED = "around requests that keys and rate limits admit"
    INNERMOST = "next to the routes"


class Command(NamedTuple):
    """A subcommand of `understudy`.

    The module `commands` of an extension's package, if it exists, has `COMMANDS`: its commands by
    name. A command is looked up in these modules, so packages without one are not imported.
    """

    run: Callable[[Sequence[str]], int]
    """Takes the arguments behind the command's name, and returns the exit status."""
    about: str
    """One line for --help."""


def late_command(module: str, about: str) -> Command:
    """Returns a command that imports `module`, and calls its `run`, when it runs."""
    return Command(lambda argv: import_module(module).run(argv), about)


def late_routes(load: Callable[[], Iterable[Route]], *operations: str) -> list[Route]:
    """Returns routes that import their module late: see `app.core.server.http.late_routes`.

    Commands import the packages of all extensions, and need no HTTP server.
    """
    from app.core.server.http import late_routes as module

    return module.late_routes(load, *operations)


class OtherEngine(NamedTuple):
    """An engine instead of the simulated one."""

    engine: EngineClient
    lifecycle: Operations
    real_model: RealModel | None = None
    """Facts about a model that computes."""
    event_source: EventSource | None = None
    """Publishes the events of the engine's own KV cache."""


class ServerParts:
    """The parts of one rank's server.

    Settings, clock and streams exist in every process, and the parts up to `keys` before any
    extension is made. The others are set while the server is built, in this order; the hooks of an
    extension may use those that their descriptions name.
    """

    server: ServerSettings
    """The server settings of this rank, with the rank's port."""
    rank: int
    tokenizer: Tokenizer
    body: BodyLimits
    """Reads the bodies of requests, within the limit of the settings."""
    recorder: Recorder
    """The metrics of the engine."""
    adapters: LoRARegistry
    adapter_memory: AdapterMemory
    """The adapters in CPU and GPU memory."""
    kv_events: PublisherSettings
    """How this rank publishes KV events."""
    weights: Weights
    """Weights of the model. A trainer may set their version."""
    keys: ApiKeys
    """The API keys in force."""
    extensions: list[Extension]
    """The enabled extensions, in the order of their calls."""
    constraints: Constraints
    """Texts and values that satisfy the schemas, patterns and grammars of requests."""

    @property
    def tool_replies(self) -> ToolReplies | None:
        """The part that decides which tools are called, and reads calls in texts."""
        replies = (extension.tool_replies() for extension in self.extensions)
        return next(filter(None, replies), None)

    cache: KVCacheManager | None = None
    """The simulated KV cache; None for an encoder and for a real engine."""
    publisher: Publisher | None = None
    """Publishes the events of the cache; None where no client can receive them."""
    event_source: EventSource | None = None
    """The publisher, or a real engine's own events."""
    engine: EngineClient
    real_model: RealModel | None = None
    """Facts about the model of a real engine; None for a simulated one."""
    pipeline: RequestPipeline
    """Validates requests for generation, and hands them to the engine."""
    is_ready: Callable[[], bool]
    """True while requests are welcome: after the start, and before the server is drained."""
    routes: Callable[[], Iterator[Route]]
    """Returns the routes of the application; complete when the application is built."""

    def __init__(self, live: LiveSettings, clock: Clock, streams: Streams) -> None:
        self.settings = live.current
        """The settings at the start."""
        self.live = live
        """The settings in force, with a subscription to their changes."""
        self.clock = clock
        self.streams = streams
        """Returns the random stream of a name, which depends on the seed and the rank."""
        self.until_drained: list[Callable[[], None]] = []
        """Called at SIGTERM to end work that has no end."""

    @cached_property
    def loops(self) -> BackgroundLoops:
        """Listeners and other loops, which are restarted after an error."""
        from app.core.base.background import BackgroundLoops  # imports gevent

        return BackgroundLoops()

    @cached_property
    def lifecycle(self) -> Operations:
        """Sleep, pause and cache resets of the simulated engine; a real engine sets its own."""
        from app.core.engine.lifecycle import Lifecycle  # few servers are paused
        from app.core.engine.sleep import PauseRules
        from app.core.versions.chain import simulated_version

        rules = simulated_version(self.settings.api).rules(PauseRules)
        engine = cast("PausableEngine", self.engine)
        return Lifecycle(engine, self.recorder, self.cache, rules)

    @cached_property
    def peers(self) -> PeerRanks:
        """The other ranks of this server."""
        from app.core.api.peer_ranks import PeerRanks  # few requests are for all ranks
        from app.core.server.gunicorn.ranks import rank_urls

        urls = rank_urls(self.settings.server, self.settings.tls)
        others = [(rank, url) for rank, url in urls if rank != self.rank]
        return PeerRanks(self.rank, others)

    def find(self, kind: type[ExtensionT]) -> ExtensionT | None:
        """Returns the enabled extension of class `kind`; None if it is off."""
        for extension in self.extensions:
            if isinstance(extension, kind):
                return extension
        return None

    def get(self, kind: type[ExtensionT]) -> ExtensionT:
        """Returns the enabled extension of class `kind`. LookupError if it is off."""
        extension = self.find(kind)
        if extension is None:
            raise LookupError(f"extension {kind.name} is disabled")
        return extension


class Extension:
    """One optional feature. Each member has a default, so that a small extension overrides one.

    The class methods are called before a server exists. An instance is made once for each server;
    the core then asks for its ports, in the order below, and at last for its additions to the
    application. `self.parts` holds what the server has so far.

    Example of an extension with one route::

        class Uptime(Extension):
            name = "uptime"

            def routes(self) -> Mapping[str, Sequence[Route]]:
                return {"uptime": [action("GET /uptime", self._uptime)]}
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Section] | None] = None
    """The section of its settings."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Names of the extensions that this one imports."""
    order: ClassVar[int] = 0
    """Extensions with lower numbers are called first. Equal numbers are called by their names.

    Set it where the order matters: the middleware of an earlier extension is the outer one, and
    the first extension that has an answer, such as a reply, decides.
    """
    reads_messages = False
    """True if engine requests must carry the texts of their messages."""
    reads_kv_events = False
    """True if this extension listens to the publisher of KV events."""

    def __init__(self, parts: ServerParts) -> None:
        self.parts = parts

    # Before a server exists.

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a server with `settings` has this extension."""
        return True

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Downloads and checks files, once, before workers start.

        Raises:
            ConfigError: a file cannot be used.
        """

    @classmethod
    def startup_lines(cls, settings: AllSettings) -> Sequence[str]:
        """Returns lines for the start of the log, such as the role of the server."""
        return ()

    @classmethod
    def paths_of_other_models(cls, settings: AllSettings) -> Collection[str]:
        """Returns paths that it serves on servers with another kind of model; may be disabled."""
        return ()

    @classmethod
    def profile(cls, settings: AllSettings, decided: Collection[str]) -> Profile | None:
        """Returns the profile that it computes for `settings`; None if a file has the profile.

        `decided` are the names of the settings that the profile must follow. The other ones have
        defaults, which the profile may replace.

        Raises:
            ConfigError: The profile cannot be computed.
        """
        return None

    @classmethod
    def tokenizer(cls, settings: AllSettings) -> Tokenizer | None:
        """Returns the tokenizer of a server; None for the one that the core loads.

        Raises:
            ConfigError: the tokenizer cannot be loaded.
        """
        return None

    @classmethod
    def read_tokenizer(cls, path: Path) -> tuple[Backend, TokenizerFolder] | None:
        """Returns the tokenizer in a file, with its special tokens; None for another format.

        Called for the tokenizers of all servers, also where the extension is disabled.

        Raises:
            TokenizerLoadError: the file cannot be used.
        """
        return None

    @classmethod
    def engine_process(cls, settings: AllSettings, kv_events: PublisherSettings) -> Any:
        """Returns the options of an engine process that the arbiter starts; None without one.

        The core compares them after a reload, and passes them to `new_engine_process`.

        Raises:
            ConfigError: the engine cannot run here.
        """
        return None

    @classmethod
    def new_engine_process(
        cls, options: Any, log: Logger, timeout_s: float
    ) -> EngineProcess | None:
        """Returns an engine process with `options`, which is not started yet; None without one.

        `timeout_s` is the longest time without a heartbeat, or 0 for no limit.
        """
        return None

    @classmethod
    def application(cls, settings: AllSettings, tokenizer: Tokenizer) -> Understudy | None:
        """Returns the application of a server with another role; None for a server of a model."""
        return None

    @classmethod
    def describe(cls, app: Understudy, settings: AllSettings) -> None:
        """Adds routes that describe the routes of an `application` with another role."""

    # Ports. They may use the parts that exist from the beginning, and the results of earlier ports.

    def constraints(self) -> Constraints | None:
        """Returns what makes replies satisfy schemas, patterns and grammars."""
        return None

    def step_cost(self, profile: Profile) -> CostModel | None:
        """Returns the cost of an engine step, in seconds, for `timing: steps`."""
        return None

    def recorded_replies(self) -> RecordedReplies | None:
        """Returns recorded replies, which the simulated model prefers to its own."""
        return None

    def tool_replies(self) -> ToolReplies | None:
        """Returns what decides which tools are called, and reads calls in replies."""
        return None

    def reply(self) -> Callable[[EngineRequest, Random], str | ScriptedReply | None] | None:
        """Returns a function that provides whole replies.

        The function receives the request and a source of random numbers. It returns a text, a text
        with reasoning, calls and timing, or None to let the next extension or the model reply.
        """
        return None

    def reply_length(self) -> Callable[[EngineRequest, Random], int | None] | None:
        """Returns a function that sets the length of a random reply, in tokens."""
        return None

    def beam_search(self) -> Search | None:
        """Returns what runs the beam searches of the simulated engine."""
        return None

    def engine(self) -> OtherEngine | None:
        """Returns an engine instead of the simulated one."""
        return None

    def kv_cache(self) -> Callable[..., KVCacheManager] | None:
        """Returns what makes the simulated KV cache, called with the arguments of `KVCacheManager`.

        None leaves it to the next extension.
        """
        return None

    def step_policies(self) -> MakePolicies | None:
        """Returns what makes rules of the scheduler, called once for each simulated engine."""
        return None

    def simulated_engine(self, rank: int) -> Callable[..., Engine] | None:
        """Returns what makes the simulated engine of a rank, called with the arguments of `Engine`.

        None leaves it to the next extension. Called once for each rank.
        """
        return None

    def fault(self) -> Callable[[RequestFacts], Fault | None] | None:
        """Returns a function that determines whether a request fails."""
        return None

    def fault_injection(self) -> FaultInjection | None:
        """Returns what makes requests fail, before they are admitted or in their answers."""
        return None

    def media(self) -> Callable[[], MediaReader] | None:
        """Returns a function that returns what reads images, sounds and films in messages."""
        return None

    def reply_rules(self) -> ReplyRules | None:
        """Returns rules that decide the replies to requests; None while there are none."""
        return None

    # What is added to the application. All parts exist.

    def plain_chats(self, chats: PlainGeneration) -> PlainHandler | None:
        """Returns what answers chats without waiting that `chats` does not recognize."""
        return None

    def keeps_fast_path(self, settings: AllSettings) -> bool:
        """Returns whether plain requests may take the fast path while `settings` are in force.

        Called at the start and after each change of the settings.
        """
        return True

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns middleware around requests, the outermost first."""
        return {}

    def wrappers(self) -> Sequence[WsgiWrapper]:
        """Returns what wraps the whole WSGI application, the innermost first."""
        return ()

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of each Flask blueprint, by the blueprint's name."""
        return {}

    def rpc(self) -> RpcService | None:
        """Returns gRPC methods."""
        return None

    def rpc_handlers(self) -> RpcHandlers | None:
        """Returns gRPC methods for the service of another extension."""
        return None

    def services(self) -> Sequence[BackgroundService]:
        """Returns background tasks, which start and close with the worker."""
        return ()

    def engine_metrics(self, families: Families) -> Families:
        """Returns what renders the metric families of the engine: `families` or a replacement."""
        return families

    def metrics(self) -> Sequence[Families]:
        """Returns functions that render metric families in Prometheus' text format."""
        return ()

    def caches(self) -> Mapping[str, Bounded]:
        """Returns bounded containers for GET /admin/memory, by name. Called at each request."""
        return {}
