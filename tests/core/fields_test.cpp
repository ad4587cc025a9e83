#include "core/fields.h"

#include "core/choice.h"
#include "core/error.h"
#include "core/files.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace hebb {

struct Window {
  int64_t size = 0;
  double scale = 1.5;
};

static void fields(Fields& f, Window& w) {
  f.field("size", w.size).required().min(1).max(100).unit("tokens").help("Length of the window.");
  f.field("scale", w.scale).above(0).below(10);
}

struct Gdn {
  int64_t num_heads = 4;
  uint64_t slots = 7;
  double decay = 0.5;
  bool is_gated = false;
  std::string mode = "skip";
  std::optional<int64_t> limit;
  std::optional<uint64_t> seed;
  std::optional<double> tau = 2.5;
  std::optional<bool> flag;
  std::optional<std::string> label;
  std::vector<int64_t> sizes{3, 5};
  std::vector<double> betas{0.9, 0.95};
  std::vector<std::string> names;
  Json extra;
};

static void fields(Fields& f, Gdn& g) {
  f.field("num_heads", g.num_heads).min(1).help("Heads.");
  f.field("slots", g.slots).min(2);
  f.field("decay", g.decay).above(0).max(1);
  f.field("is_gated", g.is_gated);
  f.field("mode", g.mode).one_of({"skip", "stop"});
  f.field("limit", g.limit).min(0);
  f.field("seed", g.seed);
  f.field("tau", g.tau);
  f.field("flag", g.flag);
  f.field("label", g.label);
  f.field("sizes", g.sizes).min(1);
  f.field("betas", g.betas).size(2).min(0).below(1);
  f.field("names", g.names).one_of({"left", "right"});
  f.field("extra", g.extra);
}

enum class Gate { none, silu };
struct Gated {
  Gate gate = Gate::silu;
};

static void fields(Fields& f, Gated& g) {
  choice(f, "gate", g.gate, {{"none", Gate::none}, {"silu", Gate::silu}}).help("Gate.");
}

struct Model {
  Gdn gdn;
  std::optional<Window> window;
  std::vector<Window> windows;
  int64_t width = 12;
};

static void fields(Fields& f, Model& m) {
  f.object("gdn", m.gdn).help("The layer.");
  f.object("window", m.window);
  f.list("windows", m.windows);
  f.field("width", m.width);
  f.require(m.width % m.gdn.num_heads == 0, "width", "a multiple of gdn.num_heads");
}

struct Choice {
  std::string kind = "plain";
  int64_t rank = 32;
  double scale = 2;
  std::optional<int64_t> limit;
  std::vector<int64_t> sizes{1};
  std::vector<Window> windows{{1, 1.0}};
};

static void fields(Fields& f, Choice& c) {
  f.field("kind", c.kind).one_of({"plain", "gated"});
  const bool is_gated = c.kind == "gated";
  f.field("rank", c.rank).min(1).only_with(is_gated, "kind \"gated\"");
  f.field("scale", c.scale).only_with(is_gated, "kind \"gated\"");
  f.field("limit", c.limit).only_with(is_gated, "kind \"gated\"");
  f.field("sizes", c.sizes).not_empty().min(1);
  f.list("windows", c.windows).not_empty();
}

struct Windowed {
  std::vector<Window> windows{{1, 1.0}, {2, 2.0}};
  int64_t most = 2;
};

static void fields(Fields& f, Windowed& w) {
  f.list("windows", w.windows);
  f.field("most", w.most);
  f.require(std::ssize(w.windows) <= w.most, "windows", "as many as \"most\" says");
}

struct Root {
  Window window;
};

static void fields(Fields& f, Root& r) { f.object("window", r.window); }

}  // namespace hebb

namespace {

template <class T> T read(const std::string& text, const std::string& path = "") {
  return Fields::read<T>(parse_json(text, "c.json"), path);
}

template <class T> std::string error_of(const std::string& text, const std::string& path = "") {
  return thrown<ConfigError>([&] { read<T>(text, path); });
}

}  // namespace

TEST_CASE("members keep their defaults and take every kind of value", "[fast]") {
  const Gdn untouched = read<Gdn>("{}");
  CHECK(untouched.num_heads == 4);
  CHECK(untouched.tau == 2.5);
  const Gdn g = read<Gdn>(R"({"num_heads": 1e3, "slots": 18446744073709551615, "decay": 1, "is_gated": true,
    "mode": "stop", "limit": 2.0, "seed": 18446744073709551615, "tau": null, "flag": false, "label": "x", "sizes": [1, 2.0, 3],
    "betas": [0, 0.5], "names": ["left"], "extra": {"free": [null]}})");
  CHECK(g.num_heads == 1000);
  CHECK(g.slots == UINT64_MAX);
  CHECK(g.decay == 1.0);
  CHECK(g.is_gated);
  CHECK(g.mode == "stop");
  CHECK(g.limit == 2);
  CHECK(g.seed == UINT64_MAX);
  CHECK_FALSE(g.tau.has_value());
  CHECK(g.flag == false);
  CHECK(g.label == "x");
  CHECK(g.sizes == std::vector<int64_t>{1, 2, 3});
  CHECK(g.betas == std::vector<double>{0.0, 0.5});
  CHECK(g.names == std::vector<std::string>{"left"});
  CHECK(g.extra.dump() == R"({"free":[null]})");
}

TEST_CASE("an unknown key is reported where it stands with the nearest known key", "[fast]") {
  CHECK(error_of<Gdn>("{\n  \"num_head\": 2}", "model.layers.gdn") ==
        "c.json:2:3: model.layers.gdn.num_head: found an unknown key, expected one of the known keys "
        "(did you mean \"num_heads\"?)");
  CHECK(error_of<Window>("{\"size\": 1, \"zzz\": 2}") ==
        "c.json:1:13: zzz: found an unknown key, expected one of the known keys (\"size\", \"scale\")");
  CHECK(error_of<Model>("{\"windows\": [{\"size\": 1, \"scal\": 2}]}")
            .find("c.json:1:26: windows.0.scal: found an unknown") == 0);
}

TEST_CASE("a value of the wrong type is reported with its position", "[fast]") {
  CHECK(error_of<Gdn>("{\"num_heads\": \"abc\"}", "model.layers.gdn") ==
        "c.json:1:15: model.layers.gdn.num_heads: found \"abc\", expected an integer");
  CHECK(error_of<Gdn>("{\"num_heads\": 1.5}") == "c.json:1:15: num_heads: found 1.5, expected an integer");
  CHECK(error_of<Gdn>("{\"num_heads\": null}") == "c.json:1:15: num_heads: found null, expected an integer");
  CHECK(error_of<Gdn>("{\"slots\": -5}") == "c.json:1:11: slots: found -5, expected an integer >= 0");
  CHECK(error_of<Gdn>("{\"slots\": -5.0}") == "c.json:1:11: slots: found -5.0, expected an integer >= 0");
  CHECK(error_of<Gdn>("{\"decay\": true}") == "c.json:1:11: decay: found true, expected a number");
  CHECK(error_of<Gdn>("{\"is_gated\": 1}") == "c.json:1:14: is_gated: found 1, expected true or false");
  CHECK(error_of<Gdn>("{\"mode\": 1}") == "c.json:1:10: mode: found 1, expected a string");
  CHECK(error_of<Gdn>("{\"limit\": \"x\"}") == "c.json:1:11: limit: found \"x\", expected an integer or null");
  CHECK(error_of<Gdn>("{\"seed\": -1}") == "c.json:1:10: seed: found -1, expected an integer >= 0 or null");
  CHECK(error_of<Gdn>("{\"flag\": 0}") == "c.json:1:10: flag: found 0, expected true, false or null");
  CHECK(error_of<Gdn>("{\"sizes\": 3}") == "c.json:1:11: sizes: found 3, expected a list of integers");
  CHECK(error_of<Gdn>("{\"sizes\": [1, \"x\"]}") == "c.json:1:15: sizes.1: found \"x\", expected an integer");
  CHECK(error_of<Gdn>(" []", "model.gdn") == "c.json:1:2: model.gdn: found an array, expected an object");
  CHECK(error_of<Model>("{\"gdn\": 3}") == "c.json:1:9: gdn: found 3, expected an object");
  CHECK(error_of<Model>("{\"gdn\": null}") == "c.json:1:9: gdn: found null, expected an object");
  CHECK(error_of<Model>("{\"window\": 3}") == "c.json:1:12: window: found 3, expected an object or null");
  CHECK(error_of<Model>("{\"windows\": {}}") == "c.json:1:13: windows: found an object, expected a list of objects");
  CHECK(error_of<Model>("{\"windows\": [3]}") == "c.json:1:14: windows.0: found 3, expected an object");
}

TEST_CASE("integers that 64 bits cannot hold are errors", "[fast]") {
  CHECK(read<Gdn>("{\"num_heads\": 9223372036854775807}").num_heads == INT64_MAX);
  CHECK(error_of<Gdn>("{\"num_heads\": 9223372036854775808}") ==
        "c.json:1:15: num_heads: found 9223372036854775808, expected an integer of 64 bits with sign");
  CHECK(error_of<Gdn>("{\"num_heads\": 1e30}") ==
        "c.json:1:15: num_heads: found 1e+30, expected an integer of 64 bits with sign");
  CHECK(error_of<Gdn>("{\"slots\": 18446744073709551616}") ==
        "c.json:1:11: slots: found 18446744073709551616.0, expected an integer >= 0 of 64 bits");
}

TEST_CASE("a choice is a name in the configuration and its value in the member", "[fast]") {
  CHECK(Fields::read<Gated>(parse_json("{\"gate\": \"none\"}", "c.json"), "").gate == Gate::none);
  CHECK(Fields::read<Gated>(parse_json("{}", "c.json"), "").gate == Gate::silu);
  CHECK(Fields::write(Gated{Gate::none}).at("gate").as_string() == "none");
  const Fields::Description gate = Fields::describe<Gated>().at(0);
  CHECK(gate.default_value == "\"silu\"");
  CHECK(gate.constraint == "one of \"none\", \"silu\"");
  CHECK(error_of<Gated>("{\"gate\": \"sil\"}") ==
        "c.json:1:10: gate: found \"sil\", expected one of \"none\", \"silu\" (did you mean \"silu\"?)");
}

TEST_CASE("broken constraints are reported with all that is known of them", "[fast]") {
  CHECK(error_of<Gdn>("{\"num_heads\": 0}", "model.layers.gdn") ==
        "c.json:1:15: model.layers.gdn.num_heads: found 0, expected an integer >= 1");
  CHECK(error_of<Window>("{\"size\": 101}") == "c.json:1:10: size: found 101, expected an integer >= 1 and <= 100");
  CHECK(error_of<Window>("{\"size\": 1, \"scale\": 0}") == "c.json:1:22: scale: found 0, expected a number > 0");
  CHECK(error_of<Window>("{\"size\": 1, \"scale\": 1e1}") ==
        "c.json:1:22: scale: found 10.0, expected a number > 0 and < 10");
  CHECK(error_of<Gdn>("{\"slots\": 1}") == "c.json:1:11: slots: found 1, expected an integer >= 2");
  CHECK(error_of<Gdn>("{\"limit\": -1}") == "c.json:1:11: limit: found -1, expected an integer >= 0");
  CHECK(error_of<Gdn>("{\"sizes\": [4, 0]}") == "c.json:1:15: sizes.1: found 0, expected an integer >= 1");
  CHECK(error_of<Gdn>("{\"betas\": [0.5, 1]}") == "c.json:1:17: betas.1: found 1, expected a number >= 0 and < 1");
  CHECK(error_of<Gdn>("{\"betas\": [0.5]}") ==
        "c.json:1:11: betas: found 1 element, expected a list of numbers of 2 elements");
  CHECK(error_of<Gdn>("{\"mode\": \"sotp\"}") ==
        "c.json:1:10: mode: found \"sotp\", expected one of \"skip\", \"stop\" (did you mean \"stop\"?)");
  CHECK(error_of<Gdn>("{\"names\": [\"left\", \"up\"]}") ==
        "c.json:1:20: names.1: found \"up\", expected one of \"left\", \"right\"");
}

TEST_CASE("where a key has no effect only its default may be written", "[fast]") {
  CHECK(read<Choice>(R"({"kind": "gated", "rank": 8, "scale": 3, "limit": 4})").rank == 8);
  CHECK(error_of<Choice>(R"({"rank": 8})") ==
        "c.json:1:10: rank: found 8, expected 32 (default): it acts only with kind \"gated\"");
  CHECK(error_of<Choice>(R"({"limit": 4})") ==
        "c.json:1:11: limit: found 4, expected no value: it acts only with kind \"gated\"");
  // What write emits, in a number's other spelling too.
  CHECK(error_of<Choice>(R"({"kind": "plain", "rank": 32.0, "scale": 2, "limit": null})") == "");
  CHECK(error_of<Choice>(Fields::write(Choice()).dump()) == "");
}

TEST_CASE("lists that must not be empty say so", "[fast]") {
  CHECK(error_of<Choice>(R"({"sizes": []})") ==
        "c.json:1:11: sizes: found an empty list, expected a list of integers with at least one element");
  CHECK(error_of<Choice>(R"({"windows": []})") ==
        "c.json:1:13: windows: found an empty list, expected a list of objects with at least one element");
  CHECK(error_of<Choice>(R"({"sizes": [3], "windows": [{"size": 1}]})") == "");
}

TEST_CASE("missing required keys are reported at the enclosing object", "[fast]") {
  CHECK(error_of<Window>("\n {}", "model.window") ==
        "c.json:2:2: model.window.size: found nothing, expected an integer (required)");
  CHECK(error_of<Window>("{\"sizes\": 4}") ==
        "c.json:1:1: size: found nothing, expected an integer (required; \"sizes\" looks similar)");
  CHECK(error_of<Root>("\n{}") == "c.json:2:1: window.size: found nothing, expected an integer (required)");
  CHECK(error_of<Model>("{}") == "");  // an absent optional object stays absent
}

TEST_CASE("values from the command line are reported as such", "[fast]") {
  Json root = parse_json("{\"gdn\": {}}", "c.json");
  apply_override(root, "gdn.num_heads=0");
  Model m;
  CHECK_THROWS_WITH(Fields::read(root, "", m), "command line: gdn.num_heads: found 0, expected an integer >= 1");
}

TEST_CASE("nested objects, optional objects and lists are read", "[fast]") {
  const Model m = read<Model>(
      R"({"gdn": {"num_heads": 3}, "window": {"size": 7}, "windows": [{"size": 1}, {"size": 2, "scale": 3}]})");
  CHECK(m.gdn.num_heads == 3);
  REQUIRE(m.window.has_value());
  CHECK(m.window->size == 7);
  REQUIRE(m.windows.size() == 2);
  CHECK(m.windows[1].scale == 3.0);
  CHECK_FALSE(read<Model>("{\"window\": null}").window.has_value());
  Model full;
  full.windows = {{9, 9.0}, {9, 9.0}};
  Fields::read(parse_json("{\"windows\": [{\"size\": 1}]}", "c.json"), "", full);
  REQUIRE(full.windows.size() == 1);
  CHECK(full.windows[0].scale == 1.5);  // a written list starts from the defaults of its elements
}

TEST_CASE("cross-field checks report the value as written or its default", "[fast]") {
  CHECK(error_of<Model>("{\"width\": 10}") == "c.json:1:11: width: found 10, expected a multiple of gdn.num_heads");
  CHECK(error_of<Model>("{\"gdn\": {\"num_heads\": 5}}") ==
        "c.json:1:1: width: found 12 (default), expected a multiple of gdn.num_heads");
  CHECK(error_of<Windowed>("{\"most\": 1}") ==
        "c.json:1:1: windows: found 2 elements (default), expected as many as \"most\" says");
}

TEST_CASE("what write emits reads back to the same values", "[fast]") {
  Model m = read<Model>(R"({"gdn": {"decay": 0.1, "limit": 3, "names": ["right"]}, "windows": [{"size": 4}]})");
  const Json out = Fields::write(m);
  CHECK(out.at("window").is_null());
  const auto back = Fields::read<Model>(parse_json(out.dump(2), "c.json"), "");
  CHECK(Fields::write(back) == out);
  CHECK(out.at("gdn").dump() ==
        R"({"num_heads":4,"slots":7,"decay":0.1,"is_gated":false,"mode":"skip","limit":3,"seed":null,"tau":2.5,)"
        R"("flag":null,"label":null,"sizes":[3,5],"betas":[0.9,0.95],"names":["right"],"extra":null})");
}

TEST_CASE("the reference lists every field with its facts", "[fast]") {
  const auto lines = Fields::describe<Model>("model");
  const std::string table = reference_markdown(lines);
  INFO(table);
  CHECK(table.find("| key | type | default | constraint | unit | meaning |\n|---|---|---|---|---|---|\n") == 0);
  for (const char* line : {
           "| `model.gdn` | object |  |  |  | The layer. |\n",
           "| `model.gdn.num_heads` | integer | `4` | >= 1 |  | Heads. |\n",
           "| `model.gdn.mode` | string | `\"skip\"` | one of \"skip\", \"stop\" |  |  |\n",
           "| `model.gdn.betas` | list of numbers | `[0.9,0.95]` | 2 elements, >= 0, < 1 |  |  |\n",
           "| `model.gdn.limit` | integer or null | `null` | >= 0 |  |  |\n",
           "| `model.window` | object or null | `null` |  |  |  |\n",
           "| `model.window.size` | integer | required | >= 1, <= 100 | tokens | Length of the window. |\n",
           "| `model.windows` | list of objects | `[]` |  |  |  |\n",
           "| `model.windows.N.scale` | number | `1.5` | > 0, < 10 |  |  |\n",
       }) {
    CHECK(table.find(line) != std::string::npos);
  }
  const std::string choice = reference_markdown(Fields::describe<Choice>());
  CHECK(choice.find("| `rank` | integer | `32` | >= 1, only with kind \"gated\" |") != std::string::npos);
  CHECK(choice.find("| `sizes` | list of integers | `[1]` | not empty, >= 1 |") != std::string::npos);
  CHECK(reference_markdown({{"a", "b", "", "x|y", "", "two\nlines", false}})
            .find("| `a` | b |  | x\\|y |  | two lines |") != std::string::npos);
}
