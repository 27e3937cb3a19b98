"""Asks a server through instructor for nested objects:

`instructor_client.py URL MODEL`. Prints JSON.
"""

import enum
import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import instructor
import openai
from pydantic import BaseModel, Field


class Unit(enum.Enum):
    """An enum inside a list inside an object."""

    GRAM = "g"
    PIECE = "piece"


class Ingredient(BaseModel):
    name: Annotated[str, Field(min_length=2, max_length=40)]
    amount: Annotated[float, Field(gt=0, le=5000)]
    unit: Unit


class Recipe(BaseModel):
    title: str
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d{4}$")]
    ingredients: Annotated[list[Ingredient], Field(min_length=2, max_length=4)]
    steps: Annotated[list[str], Field(min_length=1)]
    contact: dict[str, str] = {}


class User(BaseModel):
    """Nothing of it is required; nor is the list that instructor asks for, where it wants many."""

    name: str | None = None
    age: int | None = None


def users(patched: Any, model: str, number: int) -> list[dict[str, object]]:
    created = patched.chat.completions.create(
        model=model,
        response_model=Iterable[User],
        max_retries=0,
        messages=[{"role": "user", "content": f"Name some users of group {number}."}],
    )
    return [user.model_dump(exclude_unset=True) for user in created]


def main(url: str, model: str) -> None:
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    answers: dict[str, object] = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        recipes = [
            patched.chat.completions.create(
                model=model,
                response_model=Recipe,
                max_retries=0,
                messages=[{"role": "user", "content": f"Write recipe number {number}."}],
            )
            for number in range(5)
        ]
        answers[mode.name] = [recipe.model_dump(mode="json") for recipe in recipes]
        answers[f"{mode.name}_ITERABLE"] = [users(patched, model, number) for number in range(8)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
