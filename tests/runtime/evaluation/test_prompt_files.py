"""Files of prompts in the forms that the field publishes, and what is wrong with them."""

import json
import os
from pathlib import Path
from threading import Thread

import pytest

from underpaint.artifacts import files
from underpaint.runtime.evaluation.prompt_files import PROMPT_FORMS, FilePrompt, find_form, known_prompts
from underpaint.runtime.evaluation.prompt_files import read_prompts as read_source
from underpaint.runtime.evaluation.prompt_source import PromptSource
from underpaint.zoo.textured_prompts import parse_textured as parse

FILES = {
    "parti": ("PartiPrompts.tsv", "Prompt\tCategory\tNote\na fox\tAnimals\t\na \"red\" cat\tArts\tx\n"),
    "coco": (
        "captions_val2017.json",
        json.dumps(
            {
                "images": [{"id": 7, "file_name": "7.jpg"}, {"id": 3, "file_name": "3.jpg"}],
                "annotations": [
                    {"image_id": 7, "id": 1, "caption": "a fox "},
                    {"image_id": 7, "id": 2, "caption": "a fox again"},
                    {"image_id": 3, "id": 3, "caption": 'a "red" cat'},
                ],
            }
        ),
    ),
    "geneval": (
        "evaluation_metadata.jsonl",
        '{"tag": "single_object", "include": [{"class": "fox", "count": 1}], "prompt": "a fox"}\n'
        '{"tag": "colors", "include": [], "prompt": "a \\"red\\" cat"}\n',
    ),
    "dpg": ("dpg_bench.csv", 'item_id,text,question\n1,a fox,q1\n1,a fox,q2\nb,"a ""red"" cat",q1\n'),
    "imagenet": ("synset_words.txt", "n01440764 a fox, Vulpes vulpes\nn01443537 a \"red\" cat\n"),
    "jsonl": ("mine.jsonl", '{"prompt": "a fox", "id": "one"}\n\n{"caption": "a \\"red\\" cat"}\n'),
    "text": ("mine.txt", "a fox\r\n\n  a \"red\" cat  \n"),
}  # fmt: skip


def read_prompts(path, *arguments, **options):
    return read_source(PromptSource.read(path), *arguments, **options)


def parsed(prompt: FilePrompt):
    return parse(prompt.text)


def written(folder: Path, form: str) -> Path:
    name, text = FILES[form]
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("form", PROMPT_FORMS)
def test_every_form_is_found_out_and_read(tmp_path, form):
    path = written(tmp_path, form)
    assert find_form(PromptSource.read(path)) == form
    prompts = read_prompts(path)
    assert [one.text for one in prompts] == ["a fox", 'a "red" cat']
    assert len({one.key for one in prompts}) == 2
    assert read_prompts(path, form, count=1, skip=1) == prompts[1:]


def test_a_bom_and_a_folder_of_texts_are_read(tmp_path):
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfa fox\n")
    assert [one.text for one in read_prompts(tmp_path / "bom.txt")] == ["a fox"]
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name in ("2", "10"):
        (folder / f"{name}.txt").write_text(f"a fox\nnumber {name}\n")
    assert [(one.key, one.text) for one in read_prompts(folder)] == [("10", "a fox number 10"), ("2", "a fox number 2")]


@pytest.mark.parametrize("form", [None, *PROMPT_FORMS])
@pytest.mark.parametrize("names", [(), ("1.txt", "2.txt")])
def test_a_folder_is_read_in_one_form_alone(tmp_path, form, names):
    for name in names:
        (tmp_path / name).write_text(f"a fox of {name}")
    if form in (None, "dpg") and names:
        assert [one.key for one in read_prompts(tmp_path, form)] == ["1", "2"]
        return
    expected = "for each prompt, found none" if form in (None, "dpg") else f"expected a file of the form {form}, got a"
    with pytest.raises(ValueError, match=expected):
        read_prompts(tmp_path, form)


def test_imagenets_class_index_is_read_by_number(tmp_path):
    path = tmp_path / "imagenet_class_index.json"
    path.write_text(json.dumps({"10": ["n2", "great_grey_owl"], "2": ["n1", "tench"]}))
    prompts = read_prompts(path)
    assert [(one.text, one.details["class"]) for one in prompts] == [("tench", 2), ("great grey owl", 10)]


def test_what_a_scorer_wants_back_is_kept(tmp_path):
    assert read_prompts(written(tmp_path, "geneval"))[0].details["include"] == [{"class": "fox", "count": 1}]
    assert read_prompts(written(tmp_path, "parti"))[0].details["category"] == "Animals"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "there is no such file"),
        ("empty.txt", b" \n", "it is empty"),
        ("latin.txt", "caf\u00e9".encode("latin-1"), "expected UTF-8, byte 3"),
        ("parti.tsv", b"Text\tCategory\na fox\tx\n", "expected a column 'prompt', got text, category"),
        ("parti.tsv", b"Prompt\tCategory\n\tx\n", "the prompt of line 2 is empty"),
        ("dpg.csv", b"id,text\n1,a fox\n", "expected a column 'item_id'"),
        ("coco.json", b'{"annotations": [{"image_id": 1, "bbox": []}]}', "take captions_"),
        ("coco.json", b'{"annotations": ', "expected JSON"),
        ("classes.json", b'["tench"]', "expected ImageNet's classes"),
        ("own.jsonl", b'{"words": "a fox"}', "line 1: expected an object with one of prompt, caption, text"),
        ("own.jsonl", b"a fox", "line 1: expected JSON, got Expecting value"),
        ("parti.tsv", b'Prompt\tNote\n"a fox\nleft"\tx\n', "line 2: a quotation mark opens a field and is not closed"),
        ("parti.tsv", b"Prompt\tNote\na fox\tx\ty\n", "line 2: expected 2 fields as in the head, got 3"),
        ("parti.tsv", b"Note\tPrompt\nx\n", "line 2: expected 2 fields as in the head, got 1"),
        ("parti.tsv", b"Prompt\tprompt\na fox\tx\n", "the head names the column 'prompt' twice"),
        ("dpg.csv", b'item_id,text\n1,a fox\n2,"a cat\n3,a dog\n', "line 3: expected CSV, got unexpected end of data"),
        ("dpg.csv", b'item_id,text\n1,"a" fox\n', "line 2: expected CSV, got ',' expected after '\"'"),
        ("dpg.csv", b"item_id,text\n1,a fox\n1,a cat\n", "line 3: item 1 has another text than before"),
        ("dpg.csv", b"item_id,text\n,a fox\n", "line 2: expected an item_id"),
        ("coco.json", b'{"annotations": [{"image_id": 1, "caption": "a fox"}]}', "with a list 'images'"),
        (
            "coco.json",
            b'{"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a fox"}, '
            b'{"image_id": 2, "caption": "a cat"}]}',
            "1 captions are of images that 'images' does not list, the first of image 2",
        ),
        ("coco.json", b'{"images": [], "annotations": [{"image_id": null, "caption": "a"}]}', "no 'caption' with an"),
        ("coco.json", b'{"annotations": [], "annotations": []}', "the key 'annotations' stands twice"),
        ("coco.json", b'{"annotations": ' + b"[" * 100_000, "at most 32 lists and objects inside each other"),
        ("classes.json", b'{"0": 5}', "class 0: expected .synset, name. or a name, got 5"),
        ("classes.json", b'{"0": []}', "class 0: expected .synset, name. or a name"),
        ("classes.json", b'{"1": "a", "01": "b"}', "expected ImageNet's classes"),
        ("classes.json", '{"\u0661": "a"}'.encode(), "expected ImageNet's classes"),
        ("own.jsonl", b'{"prompt": "a fox", "prompt": "a cat"}', "line 1: the key 'prompt' stands twice"),
        ("own.jsonl", b'{"prompt": "a fox", "weight": NaN}', "line 1: expected JSON, which has no NaN"),
        ("own.jsonl", b'{"prompt": "a fox \\ud800"}', "line 1: a .u escape is half of a character"),
        ("own.jsonl", b'{"prompt": "a fox", "id": [1]}', "line 1: expected an 'id' that is a text or a whole number"),
        ("own.jsonl", b'{"prompt": "a fox", "id": 1}\n{"prompt": "a cat", "id": 1}', "the id '1' names 2 prompts"),
        ("own.jsonl", b'\n{"prompt": ' + b'{"a": ' * 100_000, "line 2: expected at most 32 lists and objects"),
        ("twice.txt", b"a fox\na cat\na fox\n", "1 prompts are repeated, the first is 'a fox' .line 1, line 3."),
    ],
)
def test_files_that_are_wrong_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_prompts(path)


def test_an_empty_folder_and_too_few_prompts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="file for each prompt"):
        read_prompts(tmp_path)
    path = written(tmp_path, "text")
    for count, skip in ((3, 0), (2, 1), (None, 2)):
        with pytest.raises(ValueError, match="it has 2 prompts"):
            read_prompts(path, count=count, skip=skip)
    with pytest.raises(ValueError, match="count >= 1"):
        read_prompts(path, count=0)


def test_the_first_of_repeated_prompts_can_be_kept(tmp_path):
    path = tmp_path / "twice.txt"
    path.write_text("a fox\na cat\na fox\n")
    prompts = read_prompts(path, repeated="first")
    assert [(one.text, one.key) for one in prompts] == [("a fox", "line 1"), ("a cat", "line 2")]


def test_prompts_without_words_are_counted_or_skipped(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("a woolly fox, an owl\nan oil painting of a castle\na stone whale, an owl\n")
    prompts = read_prompts(path)
    with pytest.raises(ValueError, match=r"1 of 3 prompts have words .*line 2.*--skip-unknown draws the rest"):
        known_prompts(prompts, parsed)
    known, unknown = known_prompts(prompts, parsed, skip_unknown=True)
    assert [one.key for one, _ in known] == ["line 1", "line 3"]
    assert [prompt.thing for _, prompt in known] == ["fox", "whale"]
    assert [one.key for one, _ in unknown] == ["line 2"]
    with pytest.raises(ValueError, match="none of them can be drawn"):
        known_prompts(prompts[1:2], parsed, skip_unknown=True)


def test_quotation_marks_of_tables_are_the_texts_or_around_it(tmp_path):
    rows = ['"a fox"', '"a ""red"" cat"', '"Stop" and "Go" on a sign', 'a sign: "Stop"']
    (tmp_path / "parti.tsv").write_text("Prompt\tNote\n" + "".join(f"{row}\tx\n" for row in rows))
    prompts = read_prompts(tmp_path / "parti.tsv")
    assert [one.text for one in prompts] == ["a fox", 'a "red" cat', '"Stop" and "Go" on a sign', 'a sign: "Stop"']
    assert [one.key for one in prompts] == ["line 2", "line 3", "line 4", "line 5"]
    (tmp_path / "dpg.csv").write_bytes(b'item_id,text\r\n1,"a fox,\r\nleft of a cat"\r\n\r\n2,a dog\r\n')
    assert [one.text for one in read_prompts(tmp_path / "dpg.csv")] == ["a fox, left of a cat", "a dog"]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_lines_end_in_line_feeds_and_carriage_returns_only(tmp_path, mark):
    (tmp_path / "mine.txt").write_text(f"a fox{mark}and a cat\na dog\n", encoding="utf-8", newline="")
    prompts = read_prompts(tmp_path / "mine.txt")
    assert [(one.text, one.key) for one in prompts] == [(f"a fox{mark}and a cat", "line 1"), ("a dog", "line 2")]
    lines = json.dumps({"prompt": f"a fox{mark}and a cat"}, ensure_ascii=False) + '\r{"prompt": "a dog"}\r\n'
    (tmp_path / "mine.jsonl").write_text(lines, encoding="utf-8", newline="")
    if mark not in "\x0b\x0c\x1c\x1e":  # control characters are escaped in JSON
        assert [one.text for one in read_prompts(tmp_path / "mine.jsonl")] == [f"a fox{mark}and a cat", "a dog"]
    for form, separator in (("tsv", "\t"), ("csv", ",")):
        head, row = separator.join(["item_id", "text", "prompt"]), separator.join(["1", f"a{mark}b", f"a{mark}b"])
        (tmp_path / f"mine.{form}").write_text(f"{head}\n{row}\n", encoding="utf-8", newline="")
        assert [one.text.split() for one in read_prompts(tmp_path / f"mine.{form}")] == [f"a{mark}b".split()]


@pytest.mark.parametrize("form", PROMPT_FORMS)
def test_a_pipe_is_read_once_and_its_form_found_by_what_it_holds(tmp_path, form):
    _, text = FILES[form]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    source = PromptSource.read(pipe)
    writer.join(60)
    assert not writer.is_alive()
    assert find_form(source) == form
    assert [one.text for one in read_source(source)] == ["a fox", 'a "red" cat']
    assert source.name == "a pipe"
    assert source.sha256() == PromptSource.read(written(tmp_path, form)).sha256()


def test_a_folders_pipe_and_an_endless_device_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="expected a regular file, got a named pipe"):
        PromptSource.read(tmp_path)
    monkeypatch.setattr(files, "MOST_PIPED", 1 << 20)
    with pytest.raises(ValueError, match="expected at most 1 MiB from a pipe or device, got more"):
        PromptSource.read(Path("/dev/zero"))
