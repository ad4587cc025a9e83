#include "data/text/text_input.h"

#include <sys/stat.h>

#include "core/error.h"
#include "tests/data/compress.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

using Format = TextInputOptions::Format;

namespace {

TextInputOptions input(const fs::path& path) { return {.inputs = {path.string()}}; }

std::vector<std::string> read_all(TextReader& reader) {
  std::vector<std::string> texts;
  for (std::string text; reader.next(text);) { texts.push_back(text); }
  return texts;
}

std::vector<std::string> read_all(const TextInputOptions& options) {
  TextReader reader(options);
  return read_all(reader);
}

std::string failure_of(const TextInputOptions& options) {
  return thrown<DataError>([&] { read_all(options); });
}

using Texts = std::vector<std::string>;

}  // namespace

FOLDER_TEST("a text file is one document, an empty one none", "[fast]") {
  folder.write("b.txt", "second\nfile\n");
  folder.write("a.txt", "first");
  folder.write("c.txt", "");
  TextReader reader(input(folder.path()));
  CHECK(read_all(reader) == Texts{"first", "second\nfile\n"});
  CHECK(reader.counts().files == 3);
  CHECK(reader.counts().documents == 2);
  CHECK(reader.counts().empty == 1);
  CHECK(reader.counts().text_bytes == 17);
}

FOLDER_TEST("folders and patterns expand in byte order, inputs stay in the given order", "[fast]") {
  for (const char* name : {"x/10.txt", "x/9.txt", "x/Z.txt", "x/a.txt", "y.txt"}) { folder.write(name, name); }
  TextInputOptions options = input(folder / "y.txt");
  options.inputs.push_back((folder / "x").string());
  CHECK(read_all(options) == Texts{"y.txt", "x/10.txt", "x/9.txt", "x/Z.txt", "x/a.txt"});
  CHECK(read_all(input(folder / "x/[0-9]*.txt")) == Texts{"x/10.txt", "x/9.txt"});
  CHECK_THROWS_AS(TextReader(input(folder / "*.none")), DataError);
  folder.write("x/deep/er/b.txt", "below");
  folder.write("x/.hidden/c.txt", "hidden");
  CHECK(read_all(input(folder / "x")) == Texts{"x/10.txt", "x/9.txt", "x/Z.txt", "x/a.txt", "below"});
  CHECK(read_all(input(folder / "**/b.txt")) == Texts{"below"});
  CHECK_THROWS_AS(TextReader(input(folder / "x/.hidden/none")), DataError);
}

FOLDER_TEST("names of folders are no patterns", "[fast]") {
  for (const char* name : {"Title [2004]", "[ab]", "star*", "what?", "Title 2", "a", "star1", "what1"}) {
    folder.write(std::string("in/") + name + "/x.txt", name);
  }
  CHECK(read_all(input(folder / "in")) ==
        Texts{"Title 2", "Title [2004]", "[ab]", "a", "star*", "star1", "what1", "what?"});
  for (const char* name : {"Title [2004]", "[ab]", "star*", "what?"}) {
    CHECK(read_all(input(folder / "in" / name)) == Texts{name});
    CHECK(read_all(input(folder / "in" / name / "*.txt")) == Texts{name});
  }
}

FOLDER_TEST("a separator splits text files, also across blocks", "[fast]") {
  TextInputOptions options = input(folder.write("f", "one<|end|>two<|end|><|end|>three<|end|>"));
  options.split = "<|end|>";
  TextReader reader(options);
  CHECK(read_all(reader) == Texts{"one", "two", "three"});
  CHECK(reader.counts().empty == 1);

  // Block borders fall into texts and separators of every phase.
  std::string text;
  Texts expected;
  for (int i = 0; i < 3000; ++i) {
    expected.push_back(std::string(static_cast<size_t>(i % 613), 'x') + std::to_string(i));
    text += expected.back() + "<|end|>";
  }
  folder.write("f", text);
  CHECK(read_all(options) == expected);
  options.split = "";
  CHECK_THROWS_WITH(TextReader(options), "--split: found an empty separator, expected at least one byte");
}

FOLDER_TEST("JSONL lines become documents; blank lines, CR LF and a byte order mark do not matter", "[fast]") {
  TextInputOptions options = input(
      folder.write("f.jsonl", "\xEF\xBB\xBF{\"text\": \"a\"}\r\n\n  \n{\"text\": \"\"}\n{\"content\": \"b\\nc\"}"));
  TextReader reader(options);
  CHECK(read_all(reader) == Texts{"a", "b\nc"});
  CHECK(reader.counts().empty == 1);

  folder.write("g.txt", "{\"body\": \"t\"}\n{\"body\": \"u\"}\n");
  options = input(folder / "g.txt");
  options.format = Format::jsonl;
  options.field = "body";
  CHECK(read_all(options) == Texts{"t", "u"});
  options = input(folder / "f.jsonl");
  options.format = Format::text;
  CHECK(read_all(options).size() == 1);
}

FOLDER_TEST("a byte order mark at the beginning of a file is no text; all other bytes are", "[fast]") {
  const std::string mark = "\xEF\xBB\xBF", kept = "a\r\n" + std::string("b\0c", 3) + mark + "\r\n";
  CHECK(read_all(input(folder.write("a.txt", mark + kept))) == Texts{kept});
  CHECK(read_all(input(folder.write("b.txt", kept))) == Texts{kept});
  CHECK(read_all(input(folder.write("c.jsonl", mark + R"({"text": "\ufeffa\r\n\u0000"})"))) ==
        Texts{mark + "a\r\n" + std::string(1, '\0')});
  TextInputOptions options = input(folder.write("d.txt", mark + "a|" + mark + "b"));
  options.split = "|";
  CHECK(read_all(options) == Texts{"a", mark + "b"});  // only where a file begins

  TextReader only_mark(input(folder.write("e.txt", mark)));
  CHECK(read_all(only_mark).empty());
  CHECK(only_mark.counts().empty == 1);
  CHECK_THROWS_WITH(read_all(input(folder.write("f.txt", mark + "ab\xFF"))), Contains("f.txt: byte 5: invalid UTF-8"));
  CHECK_THROWS_WITH(read_all(input(folder.write("g.txt", "\xEF\xBB"))), Contains("g.txt: byte 0: invalid UTF-8"));
}

FOLDER_TEST("a line or document above the limit is bad, and the reader goes on with the next file", "[fast]") {
  const std::string longer(700'001, 'y');
  TextInputOptions options = input(folder / "in");
  options.longest_bytes = 300'000;
  folder.write("in/b.txt", "short");
  SECTION("a document") {
    folder.write("in/a.txt", longer);
    CHECK_THAT(failure_of(options), Contains("a.txt: byte 0: the document is too long (found more than 300000 bytes") &&
                                        Contains("or --split for documents of a file"));
    options.split = "|";
    folder.write("in/a.txt", "one|" + longer + "|");
    CHECK_THAT(failure_of(options), Contains("a.txt: byte 4: the document is too long") && !Contains("--split"));
    options.skip_bad = 1;
    CHECK(read_all(options) == Texts{"one", "short"});
  }
  SECTION("a line") {
    folder.write("in/a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"" + longer + "\"}\n");
    CHECK_THAT(failure_of(options), Contains("a.jsonl: byte 14: the line is too long (found more than 300000 bytes") &&
                                        !Contains("--split"));
  }
#if HEBB_HAVE_ZLIB
  SECTION("a small file that expands to a large one") {
    folder.write("in/a.gz", gzip(std::string(50'000'000, '0')));
    CHECK_THAT(failure_of(options), Contains("a.gz: byte 0: the document is too long"));
  }
#endif
}

FOLDER_TEST("links to folders and standard input are noted, pipes in a folder are refused", "[fast]") {
  folder.write("in/a.txt", "a");
  folder.write("other/b.txt", "b");
  fs::create_directory_symlink(folder / "other", folder / "in/link");
  CHECK(RawReader(input(folder / "in")).notes() ==
        Texts{"1 link to folders not followed: " + (folder / "in/link").string()});
  Texts notes;
  TextReader reader(input(folder / "in"), [&](const std::string& note) { notes.push_back(note); });
  CHECK(read_all(reader) == Texts{"a"});
  CHECK(notes == Texts{"note: 1 link to folders not followed: " + (folder / "in/link").string()});
  REQUIRE(RawReader(input("-")).notes().size() == 1);
  CHECK_THAT(RawReader(input("-")).notes()[0], Contains("--format jsonl"));
  CHECK(RawReader({.inputs = {"-"}, .format = Format::jsonl}).notes().empty());
  REQUIRE(::mkfifo((folder / "in/pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(RawReader(input(folder / "in")), Contains("in/pipe: not a file (found a pipe"));
  CHECK_THROWS_WITH(RawReader(input(folder / "in/*")), Contains("in/pipe: not a file (found a pipe"));
  CHECK(RawReader(input(folder / "in/pipe")).files().size() == 1);  // named itself
}

FOLDER_TEST("a pointer of Git LFS is named as such", "[fast]") {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  CHECK_THAT(failure_of(input(folder.write("a.txt", pointer))), Contains("a.txt: found a pointer of Git LFS"));
  CHECK_THAT(failure_of(input(folder.write("a.jsonl", pointer))), Contains("a.jsonl: found a pointer of Git LFS"));
  CHECK_THROWS_WITH(read_file(folder / "a.txt"), Contains("a.txt: found a pointer of Git LFS"));
  CHECK_THROWS_WITH(MappedFile(folder / "a.txt"), Contains("a.txt: found a pointer of Git LFS"));
  CHECK(read_all(input(folder.write("b.txt", pointer + std::string(1000, 'x')))).size() == 1);
}

FOLDER_TEST("lines longer than the read block are whole", "[fast]") {
  const std::string longer(700'001, 'y');
  CHECK(read_all(input(folder.write("f.jsonl", "{\"text\": \"x\"}\n{\"text\": \"" + longer +
                                                   "\"}\n{\"text\": \"z\"}\n"))) == Texts{"x", longer, "z"});
}

FOLDER_TEST("invalid UTF-8 stops with file, line and byte offset, or is replaced", "[fast]") {
  const fs::path lines = folder.write("f.jsonl", "{\"text\": \"ok\"}\n{\"text\": \"a\xE2\x28\xA1\"}\n");
  CHECK(failure_of(input(lines)) == lines.string() +
                                        ":2: byte 26: invalid UTF-8 (found bytes E2 28, expected valid "
                                        "UTF-8, or --invalid-utf8 replace)");
  const fs::path text = folder.write("f.txt",
                                     "0123\xFF"
                                     "56789");
  CHECK(failure_of(input(text)) == text.string() +
                                       ": byte 4: invalid UTF-8 (found bytes FF, expected valid UTF-8, or "
                                       "--invalid-utf8 replace)");
  TextInputOptions options = input(lines);
  options.inputs.push_back(text.string());
  options.replace_invalid = true;
  TextReader reader(options);
  CHECK(read_all(reader) == Texts{"ok", "a\xEF\xBF\xBD(\xEF\xBF\xBD",
                                  "0123\xEF\xBF\xBD"
                                  "56789"});
  CHECK(reader.counts().replaced == 3);

  options = input(text);
  options.split = "2";
  CHECK_THAT(failure_of(options), Contains("f.txt: byte 4: invalid UTF-8"));
}

FOLDER_TEST("broken lines and missing members stop with file, line and byte offset", "[fast]") {
  const fs::path path = folder.write("f.jsonl", "{\"text\": \"ok\"}\n\n{\"text\": \"a\"\n");
  CHECK(failure_of(input(path)) ==
        path.string() + ":3: byte 28: broken JSON (found the end of the line, expected , or })");
  const fs::path other = folder.write("g.jsonl", "{\"id\": 7}\n");
  CHECK(failure_of(input(other)) ==
        other.string() + ":1: byte 0: no text (found members id, expected a string member \"text\" or \"content\")");
}

FOLDER_TEST("--skip-bad leaves out so many bad lines and reports each, the next one stops", "[fast]") {
  const fs::path path =
      folder.write("f.jsonl", "{\"text\": \"a\"}\n{\n{\"text\": \"b\"}\n{\"text\": 1}\n{\"text\": \"c\"}\n");
  TextInputOptions options = input(path);
  options.skip_bad = 2;
  Texts notes;
  TextReader reader(options, [&](const std::string& note) { notes.push_back(note); });
  CHECK(read_all(reader) == Texts{"a", "b", "c"});
  CHECK(reader.counts().bad == 2);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] ==
        "left out: " + path.string() + ":2: byte 15: broken JSON (found the end of the line, expected a member name)");
  options.skip_bad = 1;
  CHECK_THAT(failure_of(options), Catch::Matchers::EndsWith("; as many as --skip-bad allows (1) were left out before"));
}

#if HEBB_HAVE_ZLIB
FOLDER_TEST("compressed input is named as such, and a stream that is cut off keeps its whole lines", "[fast]") {
  std::string lines;
  for (int i = 0; i < 30'000; ++i) { lines += "{\"text\": \"" + std::to_string(i * 7919) + "\"}\n"; }
  const std::string packed = gzip(lines);
  CHECK(read_all(input(folder.write("whole.jsonl.gz", packed))).size() == 30'000);

  const fs::path cut = folder.write("cut.jsonl.gz", packed.substr(0, packed.size() / 2));
  folder.write("later.jsonl", "{\"text\": \"later\"}");
  TextInputOptions options = input(cut);
  options.inputs.push_back((folder / "later.jsonl").string());
  CHECK_THAT(failure_of(options),
             Catch::Matchers::StartsWith(cut.string() + ": byte " + std::to_string(packed.size() / 2) +
                                         ": gzip stream is cut off") &&
                 Contains(", in line 1"));
  options.skip_bad = 1;
  TextReader reader(options);
  const Texts texts = read_all(reader);
  CHECK(reader.counts().bad == 1);
  REQUIRE(texts.size() > 10'000);
  CHECK(texts.size() < 20'000);
  CHECK(texts[texts.size() - 2] == std::to_string((texts.size() - 2) * 7919));
  CHECK(texts.back() == "later");

  const fs::path invalid = folder.write("bad.txt.gz", gzip("abc\xFF"));
  CHECK_THAT(failure_of(input(invalid)), Contains("byte 3 of the uncompressed text: invalid UTF-8"));
}
#endif
