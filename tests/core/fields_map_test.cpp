// Paths, maps of named objects, polymorphic objects and checks after reading.
#include <algorithm>

#include "core/error.h"
#include "core/fields.h"
#include "core/files.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace hebb {

struct NamedLayer {
  std::string name, type = "wide";
  int64_t size = 2;
};

static void fields(Fields& f, NamedLayer& l) {
  l.type = f.type_tag(l.type, {"wide", "narrow"});
  f.field("size", l.size).min(1);
}

struct Layers {
  std::vector<NamedLayer> layers;
};

static void fields(Fields& f, Layers& c) {
  std::vector<std::string> names;
  for (const NamedLayer& l : c.layers) { names.push_back(l.name); }
  f.map("layers", names, [&c](const std::string& name, Fields& sub) {
     auto it = std::find_if(c.layers.begin(), c.layers.end(), [&](const NamedLayer& l) { return l.name == name; });
     fields(sub, it != c.layers.end() ? *it : (c.layers.push_back({name}), c.layers.back()));
   }).required();
  f.visit_members("layers",
                  [](const std::string& name, Fields& sub) { sub.require(name != "bad", "size", "another layer"); });
}

struct Paths {
  std::string one;
  std::optional<std::string> maybe;
  std::vector<std::string> many;
};

static void fields(Fields& f, Paths& p) {
  f.file("one", p.one);
  f.file("maybe", p.maybe);
  f.file("many", p.many);
}

struct Twice {
  int64_t x = 0;
};

static void fields(Fields& f, Twice& t) {
  f.field("x", t.x);
  f.field("x", t.x);
}

struct Checked {
  int64_t x = 0;
  bool was_written = false;
};

static void fields(Fields& f, Checked& c) {
  CHECK(f.field("x", c.x).present() == f.written("x"));
  c.was_written = f.written("x");
  if (f.reading() && c.x == 9) { f.fail("list.1.deep.none", "nine", "another number"); }
  Json rest;
  f.field("list", rest);
}

}  // namespace hebb

namespace {

template <class T> T read(const std::string& text) { return Fields::read<T>(parse_json(text, "c.json"), ""); }

template <class T> std::string error_of(const std::string& text) {
  return thrown<ConfigError>([&] { read<T>(text); });
}

}  // namespace

TEST_CASE("maps visit members in file order and write them back", "[fast]") {
  const Layers c =
      read<Layers>(R"({"layers": {"b": {"type": "wide", "size": 5}, "a": {"size": 3, "type": "narrow"}}})");
  REQUIRE(c.layers.size() == 2);
  CHECK(c.layers[0].name == "b");
  CHECK(c.layers[0].size == 5);
  CHECK(c.layers[1].type == "narrow");
  CHECK(Fields::write(c).dump() == R"({"layers":{"b":{"type":"wide","size":5},"a":{"type":"narrow","size":3}}})");
}

TEST_CASE("errors inside maps name the member", "[fast]") {
  CHECK(error_of<Layers>("{\"layers\": {\"b\": {\"type\": \"wide\", \"size\": 0}}}") ==
        "c.json:1:43: layers.b.size: found 0, expected an integer >= 1");
  CHECK(error_of<Layers>("{\"layers\": {\"b\": {\"type\": \"wied\"}}}") ==
        "c.json:1:27: layers.b.type: found \"wied\", expected one of \"wide\", \"narrow\" (did you mean \"wide\"?)");
  CHECK(error_of<Layers>("{\"layers\": {\"b\": {}}}") ==
        "c.json:1:18: layers.b.type: found nothing, expected a string (required)");
  CHECK(error_of<Layers>("{\"layers\": {\"b\": 3}}") == "c.json:1:18: layers.b: found 3, expected an object");
  CHECK(error_of<Layers>("{\"layers\": 3}") == "c.json:1:12: layers: found 3, expected an object");
  CHECK(error_of<Layers>("{}") == "c.json:1:1: layers: found nothing, expected an object (required)");
  CHECK(error_of<Layers>("{\"layers\": {\"b\": {\"type\": \"wide\", \"siz\": 0}}}") ==
        "c.json:1:35: layers.b.siz: found an unknown key, expected one of the known keys (did you mean \"size\"?)");
}

TEST_CASE("members can be visited again for checks after reading", "[fast]") {
  CHECK(error_of<Layers>("{\"layers\": {\"bad\": {\"type\": \"wide\", \"size\": 7}}}") ==
        "c.json:1:45: layers.bad.size: found 7, expected another layer");
}

TEST_CASE("describe shows maps and type tags once", "[fast]") {
  const std::string table = reference_markdown(Fields::describe<Layers>());
  CHECK(table.find("| `layers` | object with free keys | required |") != std::string::npos);
  CHECK(table.find("| `layers.NAME.type` | string | required | one of \"wide\", \"narrow\" |") != std::string::npos);
}

FOLDER_TEST("paths are relative to the file that wrote them, overrides to the current folder", "[fast]") {
  folder.write("base/base.json", R"({"one": "../x.txt", "many": ["y", "/z"], "maybe": ""})");
  const fs::path top = folder.write("runs/top.json", R"({"extends": "../base/base.json", "maybe": "w"})");
  Json config = load_config(top.string());
  auto p = Fields::read<Paths>(config, "");
  CHECK(p.one == (folder / "x.txt").string());
  CHECK(p.many == std::vector<std::string>{(folder / "base/y").string(), "/z"});
  CHECK(p.maybe == (folder / "runs/w").string());
  apply_override(config, "one=sub/x.txt");
  apply_override(config, "maybe=");
  Fields::read(config, "", p);
  CHECK(p.one == (fs::current_path() / "sub/x.txt").string());
  CHECK(p.maybe == "");
  CHECK(error_of<Paths>("{\"one\": 3}") == "c.json:1:9: one: found 3, expected a path (a string)");
}

TEST_CASE("a key declared twice is a programmer error", "[fast]") {
  CHECK_THROWS_AS(read<Twice>("{}"), std::logic_error);
  CHECK_THROWS_AS(Fields::write(Twice()), std::logic_error);
}

TEST_CASE("written tells what the configuration holds and fail takes the longest written path", "[fast]") {
  CHECK(read<Checked>("{\"x\": 1}").was_written);
  CHECK_FALSE(read<Checked>("{}").was_written);
  CHECK(error_of<Checked>("{\"x\": 9, \"list\": [0, {\"deep\": {}}]}") ==
        "c.json:1:31: list.1.deep.none: found nine, expected another number");
  CHECK(error_of<Checked>("{\"x\": 9}") == "c.json:1:1: list.1.deep.none: found nine, expected another number");
}
