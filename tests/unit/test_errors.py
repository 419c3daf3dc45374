"""Errors: suggestions for mistyped names, short reasons, and copies that survive another process."""

import pickle
from inspect import getmembers, isclass

import pytest

import privproj
from privproj import errors
from privproj.accounting.config import QUERIES
from privproj.mechanisms.registry import bound_names

M2 = privproj.M2(dim=64, rank=4, noise_multiplier=1.0)


def misspelt(word):
    """Words at edit distance one: a letter left out, doubled, replaced, two swapped."""
    for i in range(len(word)):
        yield word[:i] + word[i + 1 :]
        yield word[: i + 1] + word[i:]
        yield word[:i] + "x" + word[i + 1 :]
        yield word[:i] + word[i + 1 : i + 2] + word[i : i + 1] + word[i + 2 :]


@pytest.mark.parametrize("mechanism", sorted({kind for kind, _ in bound_names()}))
def test_bound_with_one_wrong_letter_is_suggested(mechanism):
    known = [name for kind, name in bound_names() if kind == mechanism]
    for name in known:
        for word in misspelt(name):
            assert word in known or name in errors.nearest_names(word, known), word


def test_python_errors_suggest_names():
    for call, name in (
        (lambda: privproj.epsilon(M2, delta=1e-5, bound="rankfree"), "rank-free"),
        (lambda: privproj.epsilon(M2, delta=1e-5, relation="addremove"), "add-remove"),  # pyright: ignore
        (lambda: privproj.evaluate("m2.rankfree.delta", dim=64, rank=4, mu=1, epsilon=1), "rank-free"),
        (lambda: privproj.evaluate("m2.rank-free.delt", dim=64, rank=4, mu=1, epsilon=1), "delta"),
        (lambda: privproj.evaluate("m3.rank-free.delta", dim=64, rank=4, mu=1, epsilon=1), "m2"),
        (lambda: privproj.evaluate("m2.rank-free.delta", dims=64, rank=4, mu=1, epsilon=1), "dim"),
    ):
        with pytest.raises(privproj.InvalidParameterError, match=f"did you mean .*{name}.*?"):
            call()


def test_word_that_is_near_nothing_gets_list():
    with pytest.raises(privproj.InvalidParameterError) as caught:
        privproj.evaluate("m2.rank-free.zzzzzzzz")
    assert all(name in str(caught.value) for name in QUERIES)
    assert "see there" in str(errors.unknown_name("name", "zzzz", "a name", map(str, range(99)), "see there"))


@pytest.mark.parametrize("kind", [k for _, k in getmembers(errors, isclass) if issubclass(k, errors.PrivprojError)])
def test_error_survives_another_process(kind):
    given = {
        errors.InvalidParameterError: ("rank", 0, "an integer", "a remedy"),
        errors.UnknownNameError: ("bound", "best", "bound", "choose from rank-free"),
        errors.MissingPackageError: ("torch", "training", "torch"),
    }.get(kind, ("a sentence: and more",))
    error = kind(*given)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (kind, str(error))


def test_missing_package_error_names_extra():
    error = errors.MissingPackageError("torch", "training", "torch")
    assert str(error).startswith("training needs torch, which is not installed.")
    assert str(error).endswith("pip install 'privproj[torch]'")


def test_every_error_is_exported():
    kinds = {name for name, kind in getmembers(errors, isclass) if issubclass(kind, errors.PrivprojError)}
    assert kinds - set(errors.__all__) == {"GridSizeError", "UnknownNameError"}


def test_suggestion_for_enum_member_is_its_name():
    with pytest.raises(privproj.InvalidParameterError, match="did you mean 'fixed'"):
        privproj.epsilon(privproj.Gaussian(noise_multiplier=1.0), delta=1e-5, sampling="fixd")


def test_unknown_parameter_of_mechanism_lists_its_parameters():
    with pytest.raises(privproj.InvalidParameterError, match="parameter 'noise' of Gaussian"):
        privproj.Gaussian(noise=1.0)
