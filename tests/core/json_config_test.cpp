// Inheritance and overrides of configuration files.
#include <fmt/core.h>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

Json with_override(const std::string& text, const std::string& assignment) {
  Json root = parse_json(text, "c.json");
  apply_override(root, assignment);
  return root;
}

}  // namespace

FOLDER_TEST("extends merges objects, replaces arrays and scalars, and null deletes", "[fast]") {
  folder.write("base/root.json", R"({"name": "root", "a": {"x": 1, "y": [1, 2], "z": 3}, "gone": {"k": 1}, "s": 5})");
  folder.write("base/middle.json", R"({"extends": "root.json", "a": {"y": [9]}})");
  const fs::path top = folder.write("runs/top.json", R"({"extends": "../base/middle.json",
  "a": {"z": null, "w": {"m": 4}}, "gone": null, "s": {"t": 6}})");
  const Json config = load_config(top.string());
  CHECK(config.dump() == R"({"name":"root","a":{"x":1,"y":[9],"w":{"m":4}},"s":{"t":6}})");
  CHECK(config.find("extends") == nullptr);
}

FOLDER_TEST("merged values keep the file and line that wrote them", "[fast]") {
  const fs::path base = folder.write("base.json", "{\n\"a\": {\"x\": 1, \"y\": 2}}");
  const fs::path top =
      folder.write("top.json", "{\"extends\": \"base.json\", \"a\": {\n \"y\": 3}, \"b\": {\"c\": 4}}");
  const Json config = load_config(top.string());
  CHECK(config.at("a").at("x").origin().str() == base.string() + ":2:12");
  CHECK(config.at("a").at("y").origin().str() == top.string() + ":2:7");
  CHECK(config.at("a").at("y").key_origin().str() == top.string() + ":2:2");
  CHECK(config.at("b").at("c").origin().str() == top.string() + ":2:22");
  CHECK(config.origin().str() == top.string() + ":1:1");
}

FOLDER_TEST("a null that deletes nothing stays in the configuration, where reading refuses what it may not be",
            "[fast]") {
  folder.write("base.json", R"({"a": {"x": 1}, "s": 2})");
  const fs::path top = folder.write(
      "top.json", R"({"extends": "base.json", "a": {"y": null}, "b": {"n": null}, "s": {"t": null}, "c": null})");
  CHECK(load_config(top.string()).dump() == R"({"a":{"x":1,"y":null},"s":{"t":null},"b":{"n":null},"c":null})");
  CHECK(load_config(folder.write("c.json", "{\"a\": null}").string()).dump() == "{\"a\":null}");
}

FOLDER_TEST("chains of extends and paths have a greatest length", "[fast]") {
  folder.write("0.json", "{\"a\": 1}");
  for (int i = 1; i <= 100; ++i) {
    folder.write(fmt::format("{}.json", i), fmt::format("{{\"extends\": \"{}.json\"}}", i - 1));
  }
  CHECK(load_config((folder.path() / "99.json").string()).dump() == "{\"a\":1}");
  CHECK_THROWS_WITH(
      load_config((folder.path() / "100.json").string()),
      (folder.path() / "1.json").string() +
          ":1:13: extends: found a chain of more than 100 files, expected at most 100 that extend each other");

  const auto path = [](int parts) {
    std::string text = "a";
    for (int i = 1; i < parts; ++i) { text += ".a"; }
    return text;
  };
  Json root = Json::object();
  set_path(root, path(200), Json(1));
  CHECK(root.integer_at(path(200), 0) == 1);
  CHECK(thrown<ConfigError>([&] { apply_override(root, path(1000000) + "=1"); }) ==
        "command line: \"" + path(20) + ".\"...: found 1000000 parts, expected a path of at most 200");
}

FOLDER_TEST("errors of extends name the line of the extending file", "[fast]") {
  const std::string a = folder.write("a.json", "{\n  \"extends\": \"b.json\"}").string();
  const std::string b = folder.write("b.json", "{\"extends\": \"./a.json\"}").string();
  CHECK_THROWS_WITH(load_config(a), b + ":1:13: extends: found \"./a.json\", expected a file that does not extend this "
                                        "one (the chain is a cycle)");
  const std::string missing = folder.write("c.json", "{\"extends\": \"none.json\"}").string();
  CHECK_THROWS_WITH(load_config(missing),
                    Contains(missing + ":1:13: extends: found \"none.json\", expected the path of "
                                       "a configuration file (cannot read "));
  const std::string number = folder.write("d.json", "{\"extends\": 3}").string();
  CHECK_THROWS_WITH(load_config(number), Contains(":1:13: extends: found 3, expected the path of"));
  const std::string list = folder.write("e.json", " []").string();
  CHECK_THROWS_WITH(load_config(list), list + ":1:2: found an array, expected an object");
  CHECK_THROWS_AS(load_config((folder / "none.json").string()), ConfigError);
  CHECK_THROWS_WITH(load_config((folder / "none.json").string()), Contains("cannot open: No such file"));
}

TEST_CASE("overrides set JSON values or plain strings and create missing objects", "[fast]") {
  CHECK(with_override("{}", "a.b.c=3").dump() == R"({"a":{"b":{"c":3}}})");
  CHECK(with_override(R"({"a": {"b": 1}})", "a.b=2.5").dump() == R"({"a":{"b":2.5}})");
  CHECK(with_override("{}", "name=my run").dump() == R"({"name":"my run"})");
  CHECK(with_override("{}", "name=\"3\"").dump() == R"({"name":"3"})");
  CHECK(with_override("{}", "name=").dump() == R"({"name":""})");
  CHECK(with_override("{}", "a=x=y").dump() == R"({"a":"x=y"})");
  CHECK(with_override("{}", "a={\"b\": [1, true, null]}").dump() == R"({"a":{"b":[1,true,null]}})");
  CHECK(with_override(R"({"a": [1, {"b": 2}]})", "a.1.b=7").dump() == R"({"a":[1,{"b":7}]})");
  CHECK(with_override(R"({"a/b.d": {"c": [1]}})", "/a~1b.d/c/0=7").dump() == R"({"a/b.d":{"c":[7]}})");
  CHECK(with_override(R"({"a": null})", "a.b=1").dump() == R"({"a":{"b":1}})");
  CHECK(with_override(R"({"a": {"b": 1, "c": 2}})", "a.b=null").dump() == R"({"a":{"c":2}})");
  CHECK(with_override(R"({"a": {"c": 2}})", "a.b=null").dump() == R"({"a":{"c":2,"b":null}})");
  CHECK(with_override(R"({"a": [1, {"c": 2}]})", "a.0=null").dump() == R"({"a":[null,{"c":2}]})");
  CHECK(with_override(R"({"a": [1, {"c": 2}]})", "a.1.c=null").dump() == R"({"a":[1,{}]})");
}

TEST_CASE("overridden values come from the command line", "[fast]") {
  const Json root = with_override("{}", "a.b={\"c\": [1]}");
  CHECK(root.at("a").key_origin().str() == "command line");
  CHECK(root.at("a").at("b").origin().str() == "command line");
  CHECK(root.at("a").at("b").at("c").items()[0].origin().str() == "command line");
}

TEST_CASE("overrides that cannot be applied are errors", "[fast]") {
  CHECK_THROWS_WITH(with_override("{}", "abc"),
                    "command line: found \"abc\", expected an override of the form key.path=VALUE");
  CHECK_THROWS_AS(with_override("{}", "=3"), ConfigError);
  CHECK_THROWS_WITH(with_override("{}", "a..b=3"),
                    "command line: a..b: found an empty name in the path, expected names separated by '.'");
  CHECK_THROWS_WITH(with_override("{\"a\": 1}", "a.b=3"),
                    "command line: a.b: found 1 at a, expected an object or an array");
  CHECK_THROWS_WITH(with_override("{\"a\": [1, 2]}", "a.2=3"),
                    "command line: a.2: found \"2\", expected an index from 0 to 1");
  CHECK_THROWS_WITH(with_override("{\"a\": [1, 2]}", "a.x=3"),
                    "command line: a.x: found \"x\", expected an index from 0 to 1");
  CHECK_THROWS_WITH(with_override("{\"a\": []}", "a.0=3"),
                    "command line: a.0: found \"0\", expected no index (the array is empty)");
}
