"""The palette is judged by published colour science: WCAG contrast, OKLab distance, Machado's simulation."""

from __future__ import annotations

from importlib import resources
from itertools import combinations

import numpy as np
import pytest

from support.synthetic import POLICIES
from trimtab.report.figure_parts import COLOURS, NEUTRAL, PAGE_DARK, PAGE_LIGHT, faint, inks

SIMULATIONS = {  # severity 1.0, on linear RGB
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    dark, light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (light + 0.05) / (dark + 0.05)


def oklab(rgb: np.ndarray) -> np.ndarray:
    to_lms = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    to_lab = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    return np.array(to_lab) @ np.cbrt(np.array(to_lms) @ rgb.clip(0.0, 1.0))


@pytest.mark.parametrize("page", [PAGE_LIGHT, PAGE_DARK])
@pytest.mark.parametrize("colour", [*COLOURS, NEUTRAL])
def test_lines_stand_out_from_the_page(colour: str, page: str) -> None:
    assert contrast(colour, page) >= 3.0  # WCAG 2.1, 1.4.11, graphics


@pytest.mark.parametrize("sight", SIMULATIONS)
def test_any_two_colours_differ_for_everyone(sight: str) -> None:
    seen = [oklab(np.array(SIMULATIONS[sight]) @ linear(colour)) for colour in COLOURS]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) >= 0.08


def test_every_policy_has_an_ink_of_its_own() -> None:
    assert len(set(inks(POLICIES).values())) == len(POLICIES)


def test_orders_of_one_policy_share_its_colour() -> None:
    own = inks(POLICIES)
    family = [ink.colour for policy, ink in own.items() if policy.startswith("least-expected-wait")]
    assert len(family) == 4
    assert len(set(family)) == 1


def test_more_policies_than_colours_are_told_apart_by_dashes() -> None:
    assert len(set(inks([f"p{i}" for i in range(30)]).values())) == 30


def test_faint_colours_keep_their_hue() -> None:
    assert faint("#1861D5", 0.5) == "rgba(24,97,213,0.5)"


def test_the_page_is_what_the_palette_was_made_for() -> None:
    style = (resources.files("trimtab.report") / "assets" / "page.css").read_text(encoding="utf-8")
    assert f"--card: light-dark({PAGE_LIGHT}, {PAGE_DARK});" in style
