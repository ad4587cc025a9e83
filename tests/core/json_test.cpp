#include "core/json.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/error.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

Json parse(const std::string& text) { return parse_json(text, "c.json"); }

std::string error_of(const std::string& text) {
  return thrown<ConfigError>([&] { parse(text); });
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

}  // namespace

TEST_CASE("every value and key knows its line and column", "[fast]") {
  const Json root = parse("{\n  \"a\" : 12, \"\xC3\xA9\": [true,\n -1.5e3 , \"x\\\"y\"],\n\t\"c\":{\"d\":null}}");
  CHECK(root.origin().str() == "c.json:1:1");
  CHECK(root.at("a").origin().str() == "c.json:2:9");
  CHECK(root.at("a").key_origin().str() == "c.json:2:3");
  const Json& list = root.at("\xC3\xA9");
  CHECK(list.key_origin().str() == "c.json:2:13");
  CHECK(list.origin().str() == "c.json:2:19");  // columns count bytes
  CHECK(list.items()[0].origin().str() == "c.json:2:20");
  CHECK(list.items()[1].origin().str() == "c.json:3:2");
  CHECK(list.items()[2].origin().str() == "c.json:3:11");
  CHECK(list.items()[0].key_origin().str().empty());
  CHECK(root.at("c").origin().str() == "c.json:4:6");
  CHECK(root.at("c").key_origin().str() == "c.json:4:2");
  CHECK(root.at("c").at("d").origin().str() == "c.json:4:11");
  CHECK(root.at("c").at("d").key_origin().str() == "c.json:4:7");
}

TEST_CASE("positions survive CRLF line ends and a byte order mark", "[fast]") {
  const Json root = parse("\xEF\xBB\xBF{\r\n\"a\": 1,\r\n \"b\": 2}");
  CHECK(root.origin().str() == "c.json:1:1");
  CHECK(root.at("b").origin().str() == "c.json:3:7");
}

TEST_CASE("numbers keep their kind and 64-bit integers stay exact", "[fast]") {
  const Json list = parse("[9223372036854775807, -9223372036854775808, 18446744073709551615, 1.0, 1e3, -0.0]");
  CHECK(list.items()[0].as_int() == INT64_MAX);
  CHECK(list.items()[1].as_int() == INT64_MIN);
  CHECK(list.items()[2].as_uint() == UINT64_MAX);
  CHECK(list.items()[3].kind() == Json::Kind::number);
  CHECK(list.items()[4].as_double() == 1000.0);
  CHECK(std::signbit(list.items()[5].as_double()));
  CHECK(list.dump() == "[9223372036854775807,-9223372036854775808,18446744073709551615,1.0,1000.0,-0.0]");
  CHECK(Json(uint64_t{5}).kind() == Json::Kind::integer);
}

TEST_CASE("syntax errors name the exact position", "[fast]") {
  CHECK(error_of("") == "c.json:1:1: found end of input, expected '[', '{', or a literal");
  CHECK(error_of("{\"a\" 12}") == "c.json:1:6: found number literal, expected ':'");
  CHECK(error_of("{\"a\": 1,\n }") ==
        "c.json:1:8: found a comma after the last element, expected none: JSON has no trailing commas");
  CHECK(error_of("[1, ]") ==
        "c.json:1:3: found a comma after the last element, expected none: JSON has no trailing commas");
  CHECK(error_of("{}}") == "c.json:1:3: found '}', expected end of input");
  CHECK(error_of("[1,\n  ,2]") == "c.json:2:3: found ',', expected '[', '{', or a literal");
  CHECK(error_of("[1, 2") == "c.json:1:6: found end of input, expected ']'");
  CHECK(error_of("{\"a\": 1} x") == "c.json:1:10: invalid literal");
  CHECK(error_of("{\"a\": 1} \"long text\"") == "c.json:1:10: found string literal, expected end of input");
  CHECK(error_of("{\"a\": true false}") == "c.json:1:12: found false literal, expected '}'");
  CHECK(error_of("[01]") == "c.json:1:3: found number literal, expected ']'");
  CHECK(error_of("[1] // note") == "c.json:1:5: found a comment, expected JSON, which has none");
  CHECK(error_of("{\"a\": 1, /* note */ \"b\": 2}") == "c.json:1:10: found a comment, expected JSON, which has none");
  CHECK(error_of("# note\n{}") == "c.json:1:1: found a comment, expected JSON, which has none");
  CHECK(error_of("[nope]") == "c.json:1:3: invalid literal");
  CHECK_THAT(error_of("[\"a\nb\"]"), Contains("c.json:1:4: invalid string: control character U+000A (LF)"));
  CHECK(error_of("[\"ab") == "c.json:1:5: invalid string: missing closing quote");
  CHECK(error_of("[1e]") == "c.json:1:4: invalid number; expected '+', '-', or digit after exponent");
  CHECK(error_of("{\"a\":\n 1e999}") == "c.json:2:2: found 1e999, expected a number that a double can hold");
  CHECK(error_of("[\"; last read: '; expected - unexpected\" 1]") == "c.json:1:42: found number literal, expected ']'");
  CHECK(error_of("[\"x - unexpected ; expected \t\"]").substr(0, 27) == "c.json:1:29: invalid string");
}

TEST_CASE("bytes that are not UTF-8 and NUL bytes are errors with their position", "[fast]") {
  CHECK(error_of("{\"a\":\n\"x\xFF\"}") == "c.json:2:3: invalid string: ill-formed UTF-8 byte");
  CHECK(error_of("[\"\xC3(\"]") == "c.json:1:4: invalid string: ill-formed UTF-8 byte");
  CHECK(error_of(std::string("[1]\n\0", 5)) == "c.json:2:1: found a NUL byte, expected JSON text in UTF-8");
  CHECK_THAT(error_of("[\"\\ud800\"]"), Contains("surrogate"));
  CHECK(parse("\"\\ud83d\\ude00\"").as_string() == "\xF0\x9F\x98\x80");
}

TEST_CASE("duplicate keys and deep nesting are errors", "[fast]") {
  CHECK(error_of("{\"a\": 1,\n \"a\": 2}") == "c.json:2:2: found the key \"a\" twice in one object");
  CHECK(error_of("{\"a\": {\"a\": 1}}") == "");
  CHECK(error_of(nested(200)) == "");
  CHECK(error_of(nested(201)) == "c.json:1:201: found more than 200 levels of nesting, expected at most 200");
}

TEST_CASE("a value of another kind is an error of its text, not of the program", "[fast]") {
  const Json root = parse("{\"n\": 18446744073709551615,\n\"t\": [1]}");
  const Json &n = root.at("n"), &t = root.at("t");
  const auto error = [](const auto& read) { return thrown<ConfigError>(read); };
  const std::string at_n = "c.json:1:7: found 18446744073709551615, expected ",
                    at_t = "c.json:2:6: found [1], expected ";
  CHECK(error([&] { n.as_int(); }) == at_n + "an integer below 2^63");
  CHECK(error([&] { n.as_string(); }) == at_n + "a string");
  CHECK(error([&] { n.find("x"); }) == at_n + "an object");
  CHECK(error([&] { n.items(); }) == at_n + "a list");
  CHECK(error([&] { t.as_int(); }) == at_t + "an integer");
  CHECK(error([&] { t.as_uint(); }) == at_t + "an integer >= 0");
  CHECK(error([&] { t.as_double(); }) == at_t + "a number");
  CHECK(error([&] { t.as_bool(); }) == at_t + "true or false");
  CHECK(error([&] { t.members(); }) == at_t + "an object");
  CHECK(error([&] { root.at("steps"); }) == "c.json:1:1: found no member \"steps\", expected an object that has it");
  CHECK(error([&] { root.integer_at("t", 0); }) == at_t + "an integer");
  CHECK(error([&] { root.number_at("t", 0); }) == at_t + "a number");
  CHECK(error([&] { root.text_at("t.0"); }) == "c.json:2:7: found 1, expected a string");
  CHECK(root.integer_at("t.1", 7) == 7);
  CHECK_THROWS_AS(Json(3).items(), std::logic_error);
}

TEST_CASE("doubles are written in the shortest form that reads back to the same bits", "[fast]") {
  for (const double v : {0.1, 1.0 / 3, 1e-5, 5e-324, 1.7976931348623157e308, 6.02e23, -2.5, 123456789.0, -0.0}) {
    const double back = parse(Json(v).dump()).as_double();
    CHECK(back == v);
    CHECK(std::signbit(back) == std::signbit(v));
  }
  CHECK(Json(0.1).dump() == "0.1");
  CHECK(Json(3.0).dump() == "3.0");
  CHECK(Json(std::nan("")).dump() == "\"nan\"");
  CHECK(Json(-std::numeric_limits<double>::infinity()).dump() == "\"-inf\"");
  CHECK(Json(std::numeric_limits<double>::infinity()).dump() == "\"inf\"");
}

TEST_CASE("dump writes compact, sorted and pretty forms", "[fast]") {
  const Json v = parse(R"({"b": [1, 2], "a": {"x": [], "w": [{"k": "v"}]}, "e": {}})");
  CHECK(v.dump() == R"({"b":[1,2],"a":{"x":[],"w":[{"k":"v"}]},"e":{}})");
  CHECK(v.dump(-1, true) == R"({"a":{"w":[{"k":"v"}],"x":[]},"b":[1,2],"e":{}})");
  CHECK(v.dump(2) ==
        "{\n  \"b\": [1, 2],\n  \"a\": {\n    \"x\": [],\n    \"w\": [\n      {\n        \"k\": \"v\"\n"
        "      }\n    ]\n  },\n  \"e\": {}\n}");
}

TEST_CASE("strings are escaped and invalid bytes replaced when written", "[fast]") {
  const std::string text = std::string("q\" b\\ \n\r\t \x01\0", 12) + "\xC3\xA9 \xF0\x9F\x98\x80";
  CHECK(Json(text).dump() == "\"q\\\" b\\\\ \\n\\r\\t \\u0001\\u0000\xC3\xA9 \xF0\x9F\x98\x80\"");
  CHECK(parse(Json(text).dump()).as_string() == text);
  for (const char* bad : {"\xFF", "\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    CHECK_NOTHROW(parse(Json(bad).dump()));
  }
  CHECK(Json("a\xFFz").dump() == "\"a\\ufffdz\"");
}

TEST_CASE("found gives a short text of any value", "[fast]") {
  CHECK(Json(0).found() == "0");
  CHECK(Json("abc").found() == "\"abc\"");
  CHECK(Json(true).found() == "true");
  CHECK(Json().found() == "null");
  CHECK(Json(1.5).found() == "1.5");
  CHECK(Json::array().found() == "an array");
  CHECK(parse_json("[0.5, null]", "a.json").found() == "[0.5,null]");
  CHECK(parse_json("[\"text\"]", "a.json").found() == "an array");
  CHECK(parse_json("[11111111111111111,22222222222222222,333]", "a.json").found() == "an array");
  CHECK(Json::object().found() == "an object");
  CHECK(Json(std::string(100, 'x')).found() == "\"" + std::string(40, 'x') + "\"...");
  CHECK(Json(std::string(39, 'x') + "\xC3\xA9").found() == "\"" + std::string(39, 'x') + "\"...");
}

TEST_CASE("equality looks at values alone", "[fast]") {
  CHECK(parse("{\"a\": 1, \"b\": [2]}") == parse("{\n\"b\": [2.0], \"a\": 1.0}"));
  CHECK_FALSE(parse("{\"a\": 1}") == parse("{\"a\": 1, \"b\": 1}"));
  CHECK_FALSE(parse("{\"a\": 1}") == parse("{\"b\": 1}"));
  CHECK_FALSE(parse("[1, 2]") == parse("[2, 1]"));
  CHECK_FALSE(Json(1) == Json(true));
  CHECK_FALSE(Json(1) == Json(1.5));
  CHECK_FALSE(Json(int64_t{9007199254740993}) == Json(9007199254740992.0));
  CHECK_FALSE(Json(int64_t{-1}) == Json(UINT64_MAX));
  CHECK(Json(UINT64_MAX) == Json(UINT64_MAX));
  CHECK_FALSE(Json(UINT64_MAX) == Json(0x1p64));
  CHECK(Json(std::nan("")) == Json(std::nan("")));
}

TEST_CASE("members can be set, replaced and erased", "[fast]") {
  Json v = Json::object();
  v.set("a", 1);
  v.set("b", "x");
  v.set("a", Json::array({1, 2}));
  v.set("c", true).set_origin({});
  CHECK(v.dump() == R"({"a":[1,2],"b":"x","c":true})");
  CHECK(v.erase("b"));
  CHECK_FALSE(v.erase("b"));
  CHECK(v.find("b") == nullptr);
  CHECK_THROWS_AS(v.at("b"), std::logic_error);
  CHECK_THROWS_AS(v.as_int(), std::logic_error);
  CHECK_THROWS_AS(Json(UINT64_MAX).as_int(), std::logic_error);
  CHECK_THROWS_AS(Json(-1).as_uint(), std::logic_error);
}
