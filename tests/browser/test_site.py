"""The report as people meet it: in a browser, from disk, on a desk and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

PAGES = (
    "index",
    "fineweb-sample",
    "lean-sample",
    "dm_math-sample",
    "models",
    "results",
    "look",
    "provenance",
)
CHECKS = (Path(__file__).parent / "checks.js").read_text()
TAB, ENTER = 9, 13


@pytest.fixture
def open_page(browser, site):
    """Opens pages of the site; all are closed at the end."""
    opened = []

    def open_it(name, folder="report", **how):
        page = browser.open((site.parent / folder / f"{name}.html").as_uri(), **how)
        opened.append(page)
        return page

    yield open_it
    for page in opened:
        page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280], ids=["phone", "tablet", "desk"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_sound(open_page, name, width, dark):
    page = open_page(name, width=width, dark=dark)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = page.run(CHECKS)
    assert page.problems() == []
    assert found["checked"] > 20
    assert found["poor"] == []
    assert found["overflow"] <= 0
    assert found["wide"] == []
    assert found["drawings"] == found["figures"]
    assert found["empty"] == []
    assert found["escaped"] == []
    assert found["sideways"] == 0
    assert found["unnamed"] == []
    assert found["headings"][0] == 1
    assert found["headings"].count(1) == 1


@pytest.mark.parametrize("name", ["index", "lean", "models", "results", "provenance"])
def test_a_site_of_nothing_is_sound_too(open_page, name):
    page = open_page(name, folder="empty", width=390)
    found = page.run(CHECKS)
    assert page.problems() == []
    assert (found["poor"], found["overflow"], found["empty"]) == ([], 0, [])


def test_the_checks_would_notice_bad_pages(open_page):
    page = open_page("index", width=390)
    bad = (
        '<p style="color:#aaa">grey</p><div style="width:900px">wide</div><button></button>'
        '<figure class="box"><svg role="img"><title>none</title></svg></figure>'
    )
    page.run(f"document.querySelector('main').insertAdjacentHTML('beforeend', '{bad}')")
    found = page.run(CHECKS)
    assert found["poor"][0][0] == "P.null"
    assert found["overflow"] > 0
    assert found["empty"] == ["none"]
    assert found["unnamed"] == ["<button></button>"]
    assert len(found["wide"]) == 1
    page.run("console.error('oops')")
    assert page.problems()


def test_every_page_is_reached_by_its_link(open_page, site):
    page = open_page("index")
    hrefs = page.run("[...document.querySelectorAll('nav.pages a')].map(a => a.href)")
    assert len(hrefs) == len(PAGES)
    for href in hrefs:
        page.follow(f'nav.pages a[href="{href.rpartition("/")[2]}"]')
        assert page.run("document.querySelector('[aria-current=page]').href") == href
    assert page.problems() == []


def test_the_keyboard_reaches_everything(open_page):
    page = open_page("lean-sample")
    page.press("Tab", TAB)
    assert page.run("document.activeElement.textContent") == "Skip to content"
    assert page.run("document.activeElement.getBoundingClientRect().left >= 0")
    page.press("Enter", ENTER, "\r")
    assert page.run("location.hash") == "#content"
    seen = set()
    for _ in range(200):
        page.press("Tab", TAB)
        tag = page.run("document.activeElement.tagName")
        if tag == "BODY":  # past the last stop
            break
        seen.add(tag)
        outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    assert seen == {"A", "SUMMARY", "BUTTON", "DIV"}


def test_a_row_opens_with_the_keyboard(open_page):
    page = open_page("lean-sample")
    page.run("document.querySelectorAll('.rows summary')[1].focus()")
    page.press("Enter", ENTER, "\r")
    assert page.run("document.querySelectorAll('.rows details')[1].open") is True


def test_the_theme_button_switches_and_remembers(open_page):
    page = open_page("index")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.run(colour)
    page.run("document.getElementById('theme').click()")
    dark = page.run(colour)
    assert light != dark
    assert page.run("document.getElementById('theme').textContent") == "Light"
    page.run("document.getElementById('theme').click()")
    assert page.run(colour) == light


def _point_at(page, selector, number=0):
    """Put the pointer on an element; returns what the tip then says."""
    page.run(
        f"globalThis.it = document.querySelectorAll({selector!r})[{number}];"
        "it.scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    x, y, width, height = page.run(
        "(b => [b.x, b.y, b.width, b.height])(it.getBoundingClientRect())"
    )
    page.move(x + width / 2, y + height / 2)
    return page.run("document.getElementById('tip').textContent")


def test_a_token_under_the_pointer_tells_its_id(open_page):
    page = open_page("dm_math-sample")
    assert _point_at(page, ".tokens i", 1) == "position 1 · id 44 · context"


def test_a_point_under_the_pointer_tells_its_value(open_page):
    assert _point_at(open_page("models"), ".wide g.dot .reach").endswith("B at 256")


def test_modules_can_be_filtered(open_page):
    page = open_page("dm_math-sample")
    page.run("globalThis.it = document.getElementById('find-module'); it.value = 'PRIME numbers'")
    page.run("it.dispatchEvent(new Event('input'))")
    shown = page.run(
        "[...document.querySelectorAll('.modules details')].filter(d => !d.hidden).length"
    )
    assert shown == 1


def test_pages_read_without_scripts(open_page):
    page = open_page("dm_math-sample")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.reload()
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert page.run("document.querySelectorAll('.rows details').length") > 4


def test_a_chosen_token_shows_its_sources_in_every_head(open_page):
    page = open_page("look")
    assert page.run("document.querySelector('.inspect').hidden")
    page.run("document.querySelectorAll('.look .tokens i')[6].click()")
    assert page.run("document.querySelector('.chosen').textContent").count("nats, probability") == 2
    heads = page.run(
        "[...document.querySelectorAll('.look tbody')].slice(0, 2).map(b => b.rows.length)"
    )
    assert min(heads) >= 1
    nulls = page.run(
        "[...document.querySelectorAll('.look th.null')].slice(0, 2).map(h => h.hidden)"
    )
    assert nulls == [False, True]  # TANGO has a null gate, a Transformer has none
    assert page.run("document.querySelectorAll('.look .tokens i.at').length") == 3
    before = page.run("document.querySelector('.look tbody').textContent")
    page.run("globalThis.it = document.querySelector('.inspect select'); it.value = 0")
    page.run("it.dispatchEvent(new Event('change'))")
    assert page.run("document.querySelector('.look tbody').textContent") != before
    assert page.problems() == []


def test_arrow_keys_choose_a_token(open_page):
    page = open_page("look")
    page.run("document.querySelector('.look .tokens').focus()")
    for _ in range(3):
        page.press("ArrowRight", 39)
    places = "[...document.querySelectorAll('.look .tokens')[0].querySelectorAll('i')]"
    assert page.run(f"{places}.findIndex(i => i.classList.contains('at'))") == 2


def test_a_curve_is_shown_against_the_chosen_model(open_page):
    page = open_page("results")
    page.run("globalThis.it = document.querySelector('[data-variants]'); it.value = 2")
    page.run("it.dispatchEvent(new Event('change'))")
    shown = page.run("[...it.closest('figure').querySelectorAll('.view')].map(v => !v.hidden)")
    assert shown.index(True) == 2
    assert shown.count(True) == 1


def test_the_tab_of_this_page_is_visible_on_a_phone(open_page):
    page = open_page("provenance", width=390)
    box = (
        "(b => [b.left, b.right])(document.querySelector('[aria-current]').getBoundingClientRect())"
    )
    left, right = page.run(box)
    assert 0 <= left < right <= 390


def test_a_link_into_a_folded_section_opens_it(open_page):
    page = open_page("results")
    folded = page.run("[...document.querySelectorAll('details.fold[id]')].find(d => !d.open).id")
    page.run(f"document.querySelector('.contents a[href=\"#{folded}\"]').click()")
    page.run("new Promise(done => setTimeout(done, 50))")
    assert page.run(f"document.getElementById('{folded}').open")
