"""Routes of a pooling model: vectors, classes and scores."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from app.core.protocol.common import ItemList, encode, usage_of
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, not_implemented
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import BINARY_MEDIA, Route, RouteDocs, post
from app.extensions.pooling import protocol as wire
from app.extensions.pooling.late_chunking import late_chunking_metadata
from app.extensions.pooling.packing import bytes_metadata, packed_rows, typed_vectors, written
from app.extensions.pooling.paths import COHERE, EMBEDDINGS, RERANKS, SCORES, served_paths
from app.extensions.pooling.plain import PlainEmbeddings
from app.extensions.pooling.protocol import TokenIds
from app.extensions.pooling.rules import PoolingRules
from app.extensions.pooling.runner import WRITTEN_BYTES, PoolingJob, PoolingRunner, Rows
from app.extensions.pooling.vectors import TASKS
from config.files import read_whole
from config.settings import ModelSettings
from config.untrusted import decode_untrusted, python_json
from vllm_facts.model_shape import MAX_CONFIG_BYTES

if TYPE_CHECKING:
    from app.core.api.reply_rules import ScriptedAnswer

COHERE_TYPES = ("float", "binary", "ubinary", "base64")
"""Types of a vector in the order of an answer."""
COHERE_INPUT_TYPES = ("search_document", "search_query", "classification", "clustering", "image")
"""Input types of a model without files: those of Cohere's API, without an instruction."""
INSTRUCTION_FILES = (
    ("config.json", "task_instructions"),
    ("config_sentence_transformers.json", "prompts"),
)
"""Files and keys with a model's instructions for input types, in vLLM's order."""

TASK_FAMILIES = (("embed", "token_embed"), ("classify", "token_classify"))
"""Tasks of POST /pooling that a model supports together."""
SINGLE_TASKS = ("token_embed", "token_classify", "plugin")
"""Tasks of models that support no other one."""
NO_POOLING = "The model does not support Pooling API"
NO_EMBEDDINGS = "The model does not support Embeddings API"
NO_CLASSIFICATION = "The model does not support Classification API"
NO_PLUGIN = (
    "No IOProcessor plugin installed. Please refer to the documentation and to the "
    "'prithvi_geospatial_mae_io_processor' offline inference example for more details."
)
EXAMPLE_DOCUMENTS = ("an animal", "a tool")


def routes(
    runner: PoolingRunner, settings: ModelSettings, plain: PlainEmbeddings | None = None
) -> list[Route]:
    """Returns the pooling routes of a model; `plain` answers plain requests for embeddings."""
    pooling = PoolingHandlers(runner, settings)
    embedding_docs = RouteDocs(
        body=(wire.EmbeddingRequest,),
        example={"input": "hello"},
        answer=ItemList,
        media=BINARY_MEDIA,
    )
    cohere_docs = RouteDocs(body=(wire.CohereEmbedRequest,), example={"texts": ["hello"]})
    class_docs = RouteDocs(
        body=(wire.ClassificationRequest,), example={"input": "hello"}, answer=ItemList
    )
    score_docs = RouteDocs(
        body=(wire.ScoreRequest,),
        example={"queries": "what is a cat", "documents": EXAMPLE_DOCUMENTS},
        answer=ItemList,
    )
    rerank_docs = RouteDocs(
        body=(wire.RerankRequest,),
        example={"query": "what is a cat", "documents": EXAMPLE_DOCUMENTS},
    )
    pooling_docs = replace(embedding_docs, body=(wire.PoolingRequest,))
    embedding_routes = [
        post(EMBEDDINGS, pooling.create_embeddings, plain=plain, docs=embedding_docs),
        post(COHERE, pooling.create_cohere_embeddings, docs=cohere_docs),
    ]
    if "token_embed" in (settings.task, settings.pooling_task):
        embedding_routes = token_embedding_routes(
            pooling, runner, embeds_texts=settings.task != "token_embed"
        )
    class_route = post("/classify", pooling.create_classification, docs=class_docs)
    if settings.pooling_task == "token_classify":
        class_route = post("/classify", pooling.refuse_classification)
    all_routes = [
        *embedding_routes,
        post("/pooling", pooling.create_pooling, docs=pooling_docs),
        class_route,
    ]
    all_routes += [post(path, pooling.create_score, docs=score_docs) for path in SCORES]
    all_routes += [post(path, pooling.create_rerank, docs=rerank_docs) for path in RERANKS]
    served = served_paths(settings)
    return [route for route in all_routes if route.path in served]


def token_embedding_routes(
    pooling: PoolingHandlers, runner: PoolingRunner, *, embeds_texts: bool
) -> list[Route]:
    """Returns the routes for embeddings of a model that serves them only for tokens.

    `embeds_texts` is True of a model that could embed texts, too.
    """
    if not runner.pipeline.version.rules(PoolingRules).embeds_tokens:
        if not embeds_texts:
            return []
        return [
            post(EMBEDDINGS, pooling.refuse_embeddings),
            post(COHERE, pooling.refuse_cohere_embeddings),
        ]
    docs = RouteDocs(
        body=(wire.TokenEmbeddingRequest,), example={"input": "hello"}, answer=ItemList
    )
    return [post(EMBEDDINGS, pooling.create_token_embeddings, docs=docs)]


class PoolingTasks(NamedTuple):
    """Tasks of POST /pooling: `served` ones for requests, and all `supported` ones."""

    served: Sequence[str]
    supported: Sequence[str]

    @classmethod
    def from_settings(cls, settings: ModelSettings) -> PoolingTasks:
        """Returns the tasks of a model; `pooling-task` selects one of its two."""
        if settings.task == "pooling" and not settings.pooling_task:
            return cls(TASKS, TASKS)
        if settings.task in SINGLE_TASKS:
            return cls((settings.task,), (settings.task,))
        task = settings.pooling_task
        if not task:
            task = "classify" if settings.task in ("classify", "score") else "embed"
        [supported] = [family for family in TASK_FAMILIES if task in family]
        return cls((task,), supported)

    def under(self, rules: PoolingRules) -> PoolingTasks:
        """Returns the tasks in another version of vLLM; the first served one is the default."""
        if len(self.served) > 1 or len(self.supported) == 1:
            return self
        [served] = self.served
        [other] = [task for task in self.supported if task != served]
        if rules.task_choice == "supported":
            return PoolingTasks((served, other), self.supported)
        if rules.task_choice == "token":
            token_first = sorted(self.supported, reverse=True)
            return PoolingTasks(token_first, self.supported)
        if rules.task_choice == "explicit":
            return PoolingTasks(self.served, self.served)
        return self

    def select(self, requested: str | None, rules: PoolingRules) -> str:
        """Returns the task of a request, which may omit it.

        Raises:
            ApiError: 400 for a task that the model does not support, or does not serve.
        """
        if requested is None and rules.task_choice == "explicit":
            raise bad_request(f"pooling_task must be one of {list(self.supported)}.")
        field = "task" if rules.names_task else None
        task = requested or self.served[0]
        if task == "plugin":
            raise bad_request(NO_PLUGIN, field)
        if task not in self.supported:
            problem = f"Unsupported task: {task!r} Supported tasks: {list(self.supported)}"
            raise bad_request(problem, field)
        if task not in self.served:
            switch = f"Try switching the model's pooling_task via --pooler-config.task {task}."
            raise bad_request(switch, field)
        return task


class PoolingHandlers:
    """Handlers of the pooling routes."""

    def __init__(self, runner: PoolingRunner, settings: ModelSettings) -> None:
        self._runner = runner
        self._pipeline = runner.pipeline
        self._rules = runner.pipeline.version.rules(PoolingRules)
        self._tasks = PoolingTasks.from_settings(settings).under(self._rules)
        self._labels = settings.class_labels
        self._instructions = task_instructions(Path(settings.model))

    def create_embeddings(self, context: RequestContext) -> Response:
        """A vector for each text or conversation."""
        request = self._pipeline.decode(context, wire.EmbeddingRequest)
        job = self._runner.run(context, request, "embd", "embed")
        return self._respond_vectors(context, request, job, "embed")

    def create_token_embeddings(self, context: RequestContext) -> Response:
        """A vector for each token of each text, or for each chunk of tokens."""
        request = self._pipeline.decode(context, wire.TokenEmbeddingRequest)
        job = self._runner.run(context, request, "embd", "token_embed")
        chunking = request.late_chunking_params
        if chunking is None:
            rows = self._runner.rows(request, job, "token_embed")
            values = map(self._token_numbers, rows)
            return self._respond_values(context, request, job, values, claimed_bytes(rows))
        add_special_tokens = bool(request.add_special_tokens)
        metadata = [
            late_chunking_metadata(
                text,
                len(ids),
                self._pipeline.tokenizer.offsets(text, add_special_tokens),
                chunking.chunk_size,
            )
            for text, ids in zip(request.texts, self._runner.paced(job.inputs), strict=True)
        ]
        rows = self._runner.chunk_rows(job, chunking.chunk_size, request.use_activation)
        items = (
            {
                "index": index,
                "object": "embedding",
                "embedding": self._token_numbers(input_rows),
                "late_chunking": input_metadata,
            }
            for index, (input_rows, input_metadata) in enumerate(zip(rows, metadata, strict=True))
        )
        return self._respond_list(context, job, items, claimed_bytes(rows))

    def refuse_embeddings(self, context: RequestContext) -> Response:
        """Status 501 for each valid body."""
        self._pipeline.decode(context, wire.EmbeddingRequest)
        raise not_implemented(NO_EMBEDDINGS)

    def refuse_classification(self, context: RequestContext) -> Response:
        """Status 501 for each valid body."""
        self._pipeline.decode(context, wire.ClassificationRequest)
        raise not_implemented(NO_CLASSIFICATION)

    def refuse_cohere_embeddings(self, context: RequestContext) -> Response:
        """Status 501 for each valid body."""
        self._pipeline.decode(context, wire.CohereEmbedRequest)
        raise not_implemented(NO_EMBEDDINGS)

    def create_pooling(self, context: RequestContext) -> Response:
        """The output of the model's head for each text or for the conversation."""
        request = self._pipeline.decode(context, wire.PoolingRequest)
        if self._rules.task_choice == "none":
            return json_response(bad_request(NO_POOLING).body())
        if request.dimensions is not None:
            raise bad_request("dimensions is currently not supported", "dimensions")
        task = self._tasks.select(request.task, self._rules)
        job = self._runner.run(context, request, "pooling", task)
        return self._respond_vectors(context, request, job, task)

    def create_classification(self, context: RequestContext) -> Response:
        """The probability of each class, and the name of the most likely one."""
        request = self._pipeline.decode(context, wire.ClassificationRequest)
        job = self._runner.run(context, request, "classify", "classify")

        def item(index: int, ids: TokenIds, answer: ScriptedAnswer | None) -> object:
            classes: Mapping[str, float] | Sequence[float] | None = None
            if answer is not None:
                classes = answer.classes
            if not classes:
                classes = self._runner.model.classify(ids, request.use_activation)
            labels = self._labels
            if isinstance(classes, Mapping):
                labels = tuple(classes)
                classes = tuple(classes.values())
            best = max(range(len(classes)), key=classes.__getitem__)
            label = labels[best] if best < len(labels) else f"LABEL_{best}"
            return {"index": index, "label": label, "probs": classes, "num_classes": len(classes)}

        items = map(item, count(), job.inputs, job.answers or repeat(None))
        return self._respond_list(context, job, items)

    def create_score(self, context: RequestContext) -> Response:
        """A score for each pair: one text against many, or each against its counterpart."""
        request = self._pipeline.decode(context, wire.ScoreRequest)
        comparison = self._runner.compare(context, request, request.queries, request.documents)
        items = (
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(comparison.scores)
        )
        return self._respond_list(context, comparison.job, items)

    def create_rerank(self, context: RequestContext) -> Response:
        """The documents, best first, with their scores."""
        request = self._pipeline.decode(context, wire.RerankRequest)
        comparison = self._runner.compare(context, request, request.query, request.documents)
        job = comparison.job
        scores = comparison.scores
        documents = (
            request.documents if isinstance(request.documents, list) else [request.documents]
        )
        best_first = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        results = (
            {
                "index": index,
                "document": reranked_document(documents[index]),
                "relevance_score": scores[index],
            }
            for index in best_first[: request.top_n or None]
        )
        tokens = job.prompt_tokens
        answer = wire.RerankAnswer(
            id=job.meta.id,
            model=job.meta.model,
            usage=wire.RerankUsage(prompt_tokens=tokens, total_tokens=tokens),
            results=written(self._runner.paced(results)),
        )
        return self._respond(context, answer)

    def create_cohere_embeddings(self, context: RequestContext) -> Response:
        """A vector for each text, image or mixed input, in all requested types."""
        request = self._pipeline.decode(context, wire.CohereEmbedRequest)
        self._pipeline.models.resolve(request.model)
        embedding_request = request.as_embedding(self._instruction(request.input_type or ""))
        job = self._runner.run(context, embedding_request, "embd", "embed")
        longest = max(map(len, job.inputs))
        max_tokens = request.max_tokens
        if request.truncate == "NONE" and max_tokens is not None and longest > max_tokens:
            raise bad_request(
                f"an input has {longest} tokens, which exceeds max_tokens={max_tokens}"
            )
        rows = self._runner.rows(embedding_request, job, "embed")
        vectors = [vector for input_rows in rows for vector in input_rows]
        requested_types = request.embedding_types or ["float"]
        embeddings = {
            embedding_type: typed_vectors(embedding_type, vectors, self._runner.pace)
            for embedding_type in COHERE_TYPES
            if embedding_type in requested_types
        }
        image_tokens = 0
        if request.has_images:
            image_tokens = job.prompt_tokens
        units = {
            "input_tokens": job.prompt_tokens - image_tokens,
            "image_tokens": image_tokens,
        }
        answer: dict[str, object] = {"id": job.meta.id, "embeddings": embeddings}
        if request.texts is not None:
            answer["texts"] = request.texts
        answer["meta"] = {"api_version": {"version": "2"}, "billed_units": units}
        answer["response_type"] = "embeddings_by_type"
        return self._respond(context, answer)

    def _instruction(self, input_type: str) -> str:
        """Returns the model's instruction for an input type.

        Raises:
            ApiError: 400 for a type that the model does not define.
        """
        instructions = self._instructions
        if instructions is None:
            instructions = dict.fromkeys(COHERE_INPUT_TYPES, "")
        if input_type and input_type not in instructions:
            supported = ", ".join(sorted(instructions))
            advice = f"Supported values: {supported}"
            if not supported:
                advice = "This model does not define any input_type task instructions."
            raise bad_request(f"Unsupported input_type {input_type!r}. {advice}")
        return instructions.get(input_type, "")

    def _respond_vectors(
        self, context: RequestContext, request: wire.EncodedRequest, job: PoolingJob, task: str
    ) -> Response:
        """Returns the output of `task` in the request's encoding."""
        rows = self._runner.rows(request, job, task)
        is_nested = task.startswith("token")
        encoding = request.encoding_format
        values: Iterable[object]
        if encoding == "float":
            numbers_of: Callable[[Sequence[array[float]]], object] = text_numbers
            if is_nested:
                numbers_of = self._token_numbers
            values = map(numbers_of, rows)
            return self._respond_values(context, request, job, values, claimed_bytes(rows))
        packed = packed_rows(rows, request, self._runner.pace)
        if encoding == "base64":
            values = (b64encode(data).decode() for data in packed)
            return self._respond_values(context, request, job, values, claimed_bytes(rows))
        headers = dict(self._pipeline.responder.headers)
        if encoding == "bytes":
            headers["metadata"] = bytes_metadata(request, job, rows, packed, is_nested)
        response = Response(b"".join(packed), 200, headers, content_type="application/octet-stream")
        return self._pipeline.responder.faults.damage(response, context)

    def _respond_values(
        self,
        context: RequestContext,
        request: wire.PromptRequest,
        job: PoolingJob,
        values: Iterable[object],
        claimed_bytes: int,
    ) -> Response:
        field = kind = "embedding"
        if isinstance(request, wire.PoolingRequest):
            field = "data"
            kind = "pooling"
        items = (
            {"index": index, "object": kind, field: value} for index, value in enumerate(values)
        )
        return self._respond_list(context, job, items, claimed_bytes)

    def _respond_list(
        self,
        context: RequestContext,
        job: PoolingJob,
        items: Iterable[object],
        claimed_bytes: int = 0,
    ) -> Response:
        answer = ItemList(
            id=job.meta.id,
            created=job.meta.created,
            model=job.meta.model,
            data=written(self._runner.paced(items), claimed_bytes),
            usage=usage_of(job.prompt_tokens, 0),
        )
        return self._respond(context, answer)

    def _token_numbers(self, rows: Sequence[array[float]]) -> list[Raw]:
        """Returns the rows of an input, one for each token."""
        return [Raw(encode(row.tolist())) for row in self._runner.paced(rows)]

    def _respond(self, context: RequestContext, answer: object) -> Response:
        body = self._runner.encode(answer)
        response = json_response(body, 200, self._pipeline.responder.headers)
        return self._pipeline.responder.faults.damage(response, context)


def claimed_bytes(rows: Rows) -> int:
    """Returns the memory that is claimed for the text of the numbers."""
    return WRITTEN_BYTES * sum(len(row) for input_rows in rows for row in input_rows)


def text_numbers(rows: Sequence[array[float]]) -> list[float]:
    """Returns the only row of an input."""
    return rows[0].tolist()


def task_instructions(folder: Path) -> Mapping[str, str] | None:
    """Returns the instruction of each input type in a model's folder; None without the folder."""
    if not folder.is_dir():
        return None
    for name, key in INSTRUCTION_FILES:
        try:
            content = read_whole(folder / name, MAX_CONFIG_BYTES, accepts_pipes=False)
            instructions = decode_untrusted(content, decoder=python_json).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(instructions, dict) and instructions:
            return {kind: text for kind, text in instructions.items() if isinstance(text, str)}
    return {}


def reranked_document(document: str | wire.MixedInput) -> object:
    """Returns a document as the answer of a reranking repeats it."""
    if isinstance(document, str):
        return {"text": document, "multi_modal": None}
    return {"text": None, "multi_modal": [part.given() for part in document.content]}
