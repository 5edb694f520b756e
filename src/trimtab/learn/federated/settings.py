"""federation.yaml: who takes part, what is learned, and how updates are combined."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trimtab.errors import ConfigError, UsageError
from trimtab.gateway.config.files import LOOPBACK
from trimtab.gateway.config.keys import Digests, Secret
from trimtab.gateway.config.types import (
    FOLDER,
    EnvName,
    ExistingFile,
    HostPort,
    Listen,
    Name,
    TlsSpec,
    host_port,
)
from trimtab.learn.federated.aggregation import Rule
from trimtab.learn.federated.estimates import EstimatesProblem
from trimtab.learn.federated.learning_problem import Problem
from trimtab.learn.federated.rounds import LEAST_SITES, Federation, Terms
from trimtab.validation.base import NonNegative, Positive, Spec
from trimtab.validation.names import FieldError, raise_field_errors
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

TITLE = "trimtab federation"
Count = Annotated[int, Field(ge=1)]


class SiteSpec(Spec):
    """A site that may take part: by a key, by a certificate with its name, or by both."""

    name: Name = Field(
        description="name of the site; of its certificate too (CN), where tls.client_ca is set"
    )
    sha256: Digests = Field(
        (), description="SHA-256 of its key: `trimtab serve --new-key`", json_schema_extra={"writeOnly": True}
    )
    env: EnvName | None = Field(None, description="environment variable that holds its key")

    def digests(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Digests of its keys. Raises ConfigError if the named environment variable is missing."""
        has_key = self.sha256 or self.env is not None
        return Secret(sha256=self.sha256, env=self.env).digests(environ) if has_key else ()


class EstimatesSpec(Spec):
    """Estimates that gateway and simulator begin with: `learned.safetensors`."""

    classes: tuple[Name | Literal["*"], ...] = Field(
        ("*",), min_length=1, description='classes of requests; "*" takes all others'
    )
    types: tuple[Name, ...] = Field((), description="types of nodes whose seconds of service are learned")
    rounds: Count = Field(20, description="rounds")
    local_epochs: Count = Field(2, description="passes of a site over its rows in a round")
    mu: NonNegative = Field(
        0.0, description="rows that hold a site's number at the common one (FedProx); 0 = none (FedAvg)"
    )

    def problem(self) -> Problem:
        """The problem."""
        return EstimatesProblem(self.classes, self.types, self.rounds, self.local_epochs, self.mu)


class PolicySearchSpec(Spec):
    """Parameters of a policy: `tuned.yaml`."""

    policy: str = Field("late-binding", description="policy, from whose values the search begins")
    objective: str = Field("mean s.t. p99<=+0%", description="as `trimtab tune --objective`")
    candidates: int = Field(24, ge=6, description="candidates of the first of four rounds")
    seed: int = Field(0, ge=0, description="seed of the search and of all runs")

    def problem(self) -> Problem:
        """The problem. Raises UsageError for a policy without numbers to search."""
        from trimtab.learn.federated.policy_search import (
            PolicyProblem,
        )  # takes a while: the catalogue of policies

        return PolicyProblem(self.policy, self.objective, self.candidates, self.seed)


class LearnSpec(Spec):
    """What is learned: one of the two."""

    estimates: EstimatesSpec | None = Field(None, description="output lengths, seconds of service, demand")
    policy: PolicySearchSpec | None = Field(None, description="parameters of a policy")

    @model_validator(mode="after")
    def _one(self) -> LearnSpec:
        if (self.estimates is None) == (self.policy is None):
            raise ValueError("either estimates or policy")
        return self


class AggregationSpec(Spec):
    """How updates are combined, and what a site may weigh."""

    rule: Literal["mean", "median", "trimmed-mean"] = Field(
        "mean", description="of each number over the sites"
    )
    weights: Literal["rows", "equal"] = Field(
        "rows", description="of a mean: rows as sites tell them, or equal"
    )
    rows_max: Positive | None = Field(
        None, description="rows that a site counts for at most; null = no bound"
    )
    clip: Positive | None = Field(
        None, description="longest update, as a multiple of the round's median; null = no bound"
    )
    trim_frac: float = Field(0.2, ge=0, lt=0.5, description="of the sites, cut at each end by trimmed-mean")
    sum_key: ExistingFile | None = Field(
        None,
        description="public key by which sites encrypt their updates, so that the server cannot read them: "
        "`trimtab federate keys`",
    )

    def made(self) -> Rule:
        """The rule."""
        rows_max, clip = (float("inf") if value is None else value for value in (self.rows_max, self.clip))
        return Rule(self.rule, self.weights, rows_max, clip, self.trim_frac)


class RoundSpec(Spec):
    """When a round ends, and whom it asks."""

    share_frac: float = Field(1.0, gt=0, le=1, description="of the sites, drawn for each round")
    sites_min: Count = Field(1, description="answers that a round needs")
    deadline_s: Positive = Field(60.0, description="how long it waits for the others")
    seed: int = Field(0, ge=0, description="of the draws")


class FederationConfig(Spec):
    """A federation: the server's whole configuration."""

    listen: Listen = Field("127.0.0.1:9443", description="host:port for sites")
    tls: TlsSpec | None = Field(None, description="needed unless `listen` is a loopback address")
    sites: tuple[SiteSpec, ...] = Field(min_length=1, description="sites that may take part")
    learn: LearnSpec = Field(description="what is learned")
    aggregation: AggregationSpec = Field(AggregationSpec(), description="how updates are combined")
    rounds: RoundSpec = Field(RoundSpec(), description="when rounds end")

    @model_validator(mode="after")
    def _fits_together(self) -> FederationConfig:
        raise_field_errors(self._field_errors(), TITLE)
        return self

    @property
    def address(self) -> HostPort:
        """The address for sites."""
        return host_port(self.listen)

    @property
    def terms(self) -> Terms:
        """How the federation goes on."""
        rounds, names = self.rounds, tuple(site.name for site in self.sites)
        return Terms(names, self.aggregation.made(), rounds.share_frac, rounds.sites_min, rounds.seed)

    def federation(self) -> Federation:
        """At its begin. Raises UsageError, MissingExtra."""
        problem, path = self.problem(), self.aggregation.sum_key
        if path is None:
            return Federation(problem, self.terms)
        from trimtab.learn.federated.encrypted_rounds import EncryptedFederation
        from trimtab.privacy.secure_sums import PublicKey

        return EncryptedFederation(problem, self.terms, PublicKey.read(path))

    def problem(self) -> Problem:
        """What is learned. Raises UsageError."""
        made = self.learn.estimates or self.learn.policy
        assert made is not None
        return made.problem()

    def _field_errors(self) -> Iterator[FieldError]:
        names = [site.name for site in self.sites]
        for k, site in enumerate(self.sites):
            if site.name in names[:k]:
                yield FieldError(("sites", k, "name"), site.name, "a name that no other site has")
            if not (site.sha256 or site.env) and (self.tls is None or self.tls.client_ca is None):
                expected = "sha256 or env of its key, or tls.client_ca, by which it shows a certificate"
                yield FieldError(("sites", k, "sha256"), None, expected)
        if self.rounds.sites_min > len(names):
            yield FieldError(("rounds", "sites_min"), self.rounds.sites_min, f"at most {len(names)} sites")
        yield from self._sum_errors()
        host = self.address.host
        if self.tls is None and not (host in LOOPBACK or host.startswith("127.")):
            yield FieldError(("listen",), self.listen, "a loopback address, or tls beside it")

    def _sum_errors(self) -> Iterator[FieldError]:
        """What does not go with sums that the server cannot read."""
        made = self.aggregation
        if made.sum_key is None:
            return
        if made.rule != "mean":
            yield FieldError(("aggregation", "rule"), made.rule, "mean: encrypted updates can only be added")
        if made.clip is not None:
            yield FieldError(
                ("aggregation", "clip"), made.clip, "null: the server can't see how long updates are"
            )
        if self.rounds.sites_min < LEAST_SITES:
            expected = f"{LEAST_SITES} or more: a sum of fewer shows sites each other's updates"
            yield FieldError(("rounds", "sites_min"), self.rounds.sites_min, expected)
        if self.learn.policy is not None:
            expected = "null: what is tried next depends on scores, which the server can't see"
            yield FieldError(("learn", "policy"), self.learn.policy.policy, expected)


def read_federation(path: Path) -> FederationConfig:
    """The configuration in a file. Raises ConfigError."""
    data = parsed_yaml(
        read_yaml(path, ConfigError), str(path), ConfigError, "no federation", "keys such as sites and learn"
    )
    context = {FOLDER: path.parent.absolute()}

    def made() -> FederationConfig:
        return FederationConfig.model_validate(data, context=context)

    config = checked(made, FederationConfig, str(path), ConfigError)
    try:
        config.problem()
    except UsageError as error:
        raise ConfigError(str(error), file=str(path), field="learn") from error
    return config


def site_digests(config: FederationConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Digest of a key → its site. Raises ConfigError for a key that two sites have, or that is not set."""
    found: dict[str, str] = {}
    for site in config.sites:
        for digest in site.digests(environ):
            if found.setdefault(digest, site.name) != site.name:
                raise ConfigError(
                    "has the key of another site",
                    field=f"sites.{site.name}",
                    value=found[digest],
                    expected="a key of its own",
                )
    return found


def example_text() -> str:
    """A valid federation.yaml with comments."""
    return (resources.files("trimtab.learn.federated") / "example.yaml").read_text(encoding="utf-8")


def problem_of(told: Mapping[str, Any]) -> Problem:
    """The problem that a server tells of. Raises UsageError for one that this release does not know."""
    settings: dict[str, Any] = dict(told)
    kind = settings.pop("kind", None)
    try:
        if kind == "estimates":
            classes, types = (tuple(settings.pop(key)) for key in ("classes", "types"))
            return EstimatesProblem(classes, types, **settings)
        if kind == "policy":
            from trimtab.learn.federated.policy_search import PolicyProblem

            settings.pop("release")
            return PolicyProblem(**settings)
    except (KeyError, TypeError) as error:
        raise UsageError(
            "asks in terms of another version", field="problem", value=settings, expected="the same trimtab"
        ) from error
    raise UsageError(
        "asks for something else",
        field="problem",
        value=kind,
        expected="estimates or policy: the same trimtab",
    )
