#include "core/read_all.h"

#include "core/fields.h"
#include "core/key_error.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace hebb {

struct Section {
  int64_t steps = 0;
  double rate = 0.5;
  std::vector<double> betas{0.9, 0.95};
  std::string kind = "plain";
};

static void fields(Fields& f, Section& s) {
  f.field("steps", s.steps).required().min(1);
  f.field("rate", s.rate).above(0);
  f.field("betas", s.betas).size(2).below(1);
  f.field("kind", s.kind).one_of({"plain", "other"});
  f.require(s.rate < 10, "rate", "less than 10");
}

struct Group {
  std::vector<std::string> names;
};

static void fields(Fields& f, Group& g) { f.field("names", g.names).required(); }

struct Whole {
  Section first;
  std::vector<Section> list;
  std::optional<Group> group;
};

static void fields(Fields& f, Whole& w) {
  f.object("first", w.first);
  f.list("list", w.list);
  f.object("group", w.group);
}

}  // namespace hebb

namespace {

std::string errors_of(const std::string& text, Whole* value = nullptr) {
  Whole whole;
  const std::string errors = thrown<ConfigError>([&] {
    read_all(parse_json(text, "c.json"), [&](const Json& json) {
      whole = {};
      Fields::read(json, "", whole);
    });
  });
  if (errors.empty() && value != nullptr) { *value = whole; }
  return errors;
}

}  // namespace

TEST_CASE("all wrong keys of a configuration are told at once", "[fast]") {
  Whole whole;
  CHECK(errors_of(R"({"first": {"steps": 3}, "list": [{"steps": 4}, {"steps": 5, "rate": 2}]})", &whole).empty());
  CHECK(whole.list.size() == 2);
  CHECK(errors_of("{\"first\": {\"steps\": 3, \"rat\": 1, \"betas\": [0.5, 1]},\n"
                  " \"list\": [{\"steps\": 4}, {\"steps\": 5, \"rate\": \"x\"}],\n"
                  " \"lost\": 1}") ==
        "c.json:1:49: first.betas.1: found 1, expected a number < 1\n"
        "c.json:1:24: first.rat: found an unknown key, expected one of the known keys (did you mean \"rate\"?)\n"
        "c.json:2:46: list.1.rate: found \"x\", expected a number\n"
        "c.json:3:2: lost: found an unknown key, expected one of the known keys (did you mean \"list\"?)");
}

TEST_CASE("reading goes on behind required keys that are missing or wrong", "[fast]") {
  CHECK(errors_of(R"({"first": {"steps": 0, "rate": -1}, "list": [{"rat": 2}, {"steps": "x"}], "x": 1})") ==
        "c.json:1:21: first.steps: found 0, expected an integer >= 1\n"
        "c.json:1:32: first.rate: found -1, expected a number > 0\n"
        "c.json:1:46: list.0.steps: found nothing, expected an integer (required)\n"
        "c.json:1:47: list.0.rat: found an unknown key, expected one of the known keys (did you mean \"rate\"?)\n"
        "c.json:1:68: list.1.steps: found \"x\", expected an integer\n"
        "c.json:1:75: x: found an unknown key, expected one of the known keys (\"first\", \"list\", \"group\")");
  CHECK(errors_of(R"({"x": 1})") ==
        "c.json:1:1: first.steps: found nothing, expected an integer (required)\n"
        "c.json:1:2: x: found an unknown key, expected one of the known keys (\"first\", \"list\", \"group\")");
}

TEST_CASE("a list that is left out for an element is not missed", "[fast]") {
  CHECK(errors_of(R"({"first": {"steps": 3}, "group": {"names": [1, "b"]}, "x": 1})") ==
        "c.json:1:45: group.names.0: found 1, expected a string\n"
        "c.json:1:55: x: found an unknown key, expected one of the known keys (\"first\", \"list\", \"group\")");
}

TEST_CASE("reading ends at a name that says which keys there are", "[fast]") {
  CHECK(errors_of(R"({"first": {"steps":  3,    "rate": -1, "kind": "odd"}, "x": 1})") ==
        "c.json:1:36: first.rate: found -1, expected a number > 0\n"
        "c.json:1:48: first.kind: found \"odd\", expected one of \"plain\", \"other\"");
  CHECK(errors_of(R"({"x": 1, "first": {"steps": 3}, "list": 5, "y": 1})") ==
        "c.json:1:41: list: found 5, expected a list of objects");
}

TEST_CASE("how values fit together is judged where none was left out", "[fast]") {
  CHECK(errors_of(R"({"first": {"steps": 3, "rate": 10, "x": 1}})") ==
        "c.json:1:32: first.rate: found 10, expected less than 10");
  CHECK(errors_of(R"({"x": 1, "first": {"steps": 3}, "list": [{"steps": 1, "y": 2}, {"steps": 3, "rate": 10}]})") ==
        "c.json:1:55: list.0.y: found an unknown key, expected one of the known keys (\"steps\", \"rate\", \"betas\", "
        "\"kind\")\nc.json:1:85: list.1.rate: found 10, expected less than 10");
  CHECK(errors_of(R"({"first": {"steps": 3, "betas": [0, 2]}, "list": [{"steps": 3, "rate": 10}]})") ==
        "c.json:1:37: first.betas.1: found 2, expected a number < 1");
  CHECK(errors_of(R"({"first": {"steps": 3, "betas": [0, 2], "x": 1}, "list": [{"steps": 3, "rate": 10}]})") ==
        "c.json:1:37: first.betas.1: found 2, expected a number < 1\n"
        "c.json:1:41: first.x: found an unknown key, expected one of the known keys (\"steps\", \"rate\", \"betas\", "
        "\"kind\")");
}

TEST_CASE("twenty errors are told, and no more", "[fast]") {
  for (const int wrong : {19, 20, 21, 25}) {
    std::string text = R"({"first": {"steps": 3})";
    for (int i = 0; i < wrong; ++i) { text += ", \"x" + std::to_string(i) + "\": 1"; }
    const std::string errors = errors_of(text + "}");
    CHECK(std::count(errors.begin(), errors.end(), '\n') + 1 == std::min(wrong, 20));
  }
}
