#include "core/safetensors.h"

#include <cmath>
#include <cstring>

#include "core/hash.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

/// A file from its header text and data; `length` defaults to the true one.
std::string image(const std::string& header, const std::string& data, int64_t length = -1) {
  const uint64_t n = length < 0 ? header.size() : static_cast<uint64_t>(length);
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
}

std::string error_of(const std::string& bytes) {
  const TempFolder folder;
  const fs::path path = folder.write("x.safetensors", bytes);
  const std::string text = thrown<CheckpointError>([&] { SafetensorsFile file(path); }), start = path.string() + ": ";
  CHECK((text.empty() || text.starts_with(start)));
  return text.empty() ? "" : text.substr(start.size());
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

const char kVector[] =
    "\x38\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  \0\0\x80\x3f\0\0\0\xc0";

}  // namespace

FOLDER_TEST("the 72-byte vector of the format page is written and read", "[fast]") {
  const std::string expected(kVector, 72);
  float w[] = {1.0f, -2.0f};
  const uint32_t crc = write_safetensors(folder / "w.safetensors", {{"w", {w, DType::f32, {2}}}});
  CHECK(read_file(folder / "w.safetensors") == expected);
  CHECK(crc == crc32(expected.data(), expected.size()));
  const SafetensorsFile file(folder / "w.safetensors");
  CHECK(file.doubles("w") == std::vector<double>{1.0, -2.0});
  CHECK(file.at("w").shape == std::vector<int64_t>{2});
  CHECK(file.at("w").dtype == DType::f32);
}

FOLDER_TEST("tensors are written by width, then name, and read back with metadata", "[fast]") {
  std::vector<double> f64{0.1, -0.0, 1e300};
  std::vector<float> f32{0.5f, 3.0f};
  std::vector<int64_t> i64{INT64_MIN, 7};
  std::vector<int32_t> i32{-3};
  std::vector<uint8_t> u8{0, 255, 9};
  std::vector<uint16_t> bf16{0x3FC0, 0xC000};
  write_safetensors(folder / "t",
                    {{"u", {u8.data(), DType::u8, {3}}},
                     {"b", {bf16.data(), DType::bf16, {2}}},
                     {"z", {f32.data(), DType::f32, {2, 1}}},
                     {"y", {i32.data(), DType::i32, {}}},
                     {"e", {nullptr, DType::f64, {0, 3}}},
                     {"d", {f64.data(), DType::f64, {3}}},
                     {"i", {i64.data(), DType::i64, {1, 2}}}},
                    {{"format", "hebb"}, {"note", "a \"quoted\" text"}});
  const std::string bytes = read_file(folder / "t");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK((8 + length) % 8 == 0);
  std::vector<size_t> places;
  for (const char* name : {"\"__metadata__\":", "\"d\":", "\"e\":", "\"i\":", "\"y\":", "\"z\":", "\"b\":", "\"u\":"}) {
    places.push_back(bytes.find(name));
  }
  CHECK(std::is_sorted(places.begin(), places.end()));
  const SafetensorsFile file(folder / "t");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "hebb"}, {"note", "a \"quoted\" text"}});
  CHECK(file.doubles("d") == f64);
  CHECK(file.doubles("z") == std::vector<double>{0.5, 3.0});
  CHECK(file.doubles("b") == std::vector<double>{1.5, -2.0});
  CHECK(file.doubles("e").empty());
  CHECK(file.integers("i") == i64);
  CHECK(file.integers("y") == std::vector<int64_t>{-3});
  CHECK(file.integers("u") == std::vector<int64_t>{0, 255, 9});
  CHECK(file.at("z").shape_text() == "[2, 1]");
  CHECK(file.at("y").shape_text() == "[]");
}

FOLDER_TEST("tensors of the CPU device are written in place", "[fast]") {
  std::vector<float> w{1.0f, -2.0f, 3.0f};
  Stream stream;
  DeviceReader reader(stream, 4);
  const uint32_t crc = write_safetensors(folder / "device", {{"w", {w.data(), DType::f32, {3}}, true}}, {}, &reader);
  CHECK(crc == write_safetensors(folder / "host", {{"w", {w.data(), DType::f32, {3}}}}));
  CHECK(read_file(folder / "device") == read_file(folder / "host"));
  reader.read({w.data(), DType::f32, {3}}, [&](const void* bytes, size_t size) {
    CHECK(bytes == w.data());
    CHECK(size == 12);
  });
}

FOLDER_TEST("half precision and small integer types are converted", "[fast]") {
  const std::string header = "{\"h\":" + tensor("F16", "[6]", "[0,12]") + ",\"s\":" + tensor("I16", "[1]", "[12,14]") +
                             ",\"q\":" + tensor("U16", "[1]", "[14,16]") + ",\"c\":" + tensor("I8", "[1]", "[16,17]") +
                             ",\"o\":" + tensor("BOOL", "[1]", "[17,18]") +
                             ",\"l\":" + tensor("U64", "[1]", "[18,26]") + ",\"w\":" + tensor("U32", "[1]", "[26,30]") +
                             "}";
  // 1, -2, 2^-24, 65504, -inf, NaN
  const std::string data = std::string("\x00\x3c\x00\xc0\x01\x00\xff\x7b\x00\xfc\x01\x7e", 12) +
                           std::string("\xfe\xff\xfe\xff\xff\x01", 6) + std::string(8, '\xff') + std::string(4, '\xff');
  const SafetensorsFile file(folder.write("x", image(header, data)));
  const std::vector<double> h = file.doubles("h");
  CHECK(std::vector<double>(h.begin(), h.begin() + 5) == std::vector<double>{1.0, -2.0, 0x1p-24, 65504.0, -HUGE_VAL});
  CHECK(std::isnan(h[5]));
  CHECK(file.integers("s")[0] == -2);
  CHECK(file.integers("q")[0] == 65534);
  CHECK(file.integers("c")[0] == -1);
  CHECK(file.integers("o")[0] == 1);
  CHECK(file.integers("w")[0] == 4294967295);
  CHECK_THROWS_WITH(file.integers("l"),
                    Contains("tensor \"l\": a value is too large (found 2^63 or more, expected less than 2^63)"));
}

FOLDER_TEST("reading with the wrong dtype or name is an error", "[fast]") {
  const SafetensorsFile file(folder.write("x", std::string(kVector, 72)));
  CHECK_THROWS_WITH(file.integers("w"),
                    Contains("tensor \"w\": wrong dtype (found F32, expected an integer type or BOOL)"));
  CHECK_THROWS_WITH(file.doubles("v"),
                    Contains("tensor \"v\": no such tensor (found nothing, expected one of the file's 1 tensor)"));
  CHECK_THROWS_WITH(file.doubles("embedding"), Contains("expected one of the file's 1 tensor)"));
  const SafetensorsFile other(folder.write("y", image("{\"i\":" + tensor("I8", "[1]", "[0,1]") + "}", "x")));
  CHECK_THROWS_WITH(other.doubles("i"), Contains("wrong dtype (found I8, expected F64, F32, BF16 or F16)"));
  CHECK(file.find("v") == nullptr);
  CHECK_THROWS_AS(SafetensorsFile(folder / "none"), CheckpointError);
}

FOLDER_TEST("a tensor of an unknown dtype is refused where it is asked for", "[fast]") {
  const std::string header = R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
  const uint64_t length = header.size();
  const float value = 3;
  const SafetensorsFile file(folder.write("x", std::string(reinterpret_cast<const char*>(&length), 8) + header + "??" +
                                                   std::string(reinterpret_cast<const char*>(&value), 4)));
  CHECK(file.doubles("b") == std::vector<double>{3});
  CHECK(file.at("a").dtype_text == "F4");
  CHECK_THROWS_WITH(file.doubles("a"), Contains("tensor \"a\": wrong dtype (found F4, expected F64"));
  CHECK_THROWS_WITH(file.integers("a"), Contains("tensor \"a\": wrong dtype (found F4, expected an integer type"));
}

TEST_CASE("a header of many values is refused before it takes memory", "[fast]") {
  const std::string most = ", expected at most 500000)";
  std::string list(90'000'000, '0');
  for (size_t i = 1; i < list.size(); i += 2) { list[i] = ','; }
  CHECK(error_of(image("{\"w\":[" + list + "0]}", "")) == "the header has too many values (found 45000003" + most);
  std::string metadata = "{\"__metadata__\":{\"\\\"{[,\":\"\"";
  for (int i = 0; i < 500'000; ++i) { metadata += ",\"" + std::to_string(i) + "\":\"\""; }
  CHECK(error_of(image(metadata + "}}", "")) == "the header has too many values (found 500003" + most);
  std::string text = "{\"__metadata__\":{\"a\":\"" + std::string(1'000'000, ',') + "\\\\\\\",\"}}";
  CHECK(error_of(image(text, "")).empty());
}

TEST_CASE("damaged headers are checkpoint errors that say what was found", "[fast]") {
  CHECK(error_of("1234567") == "the file is cut short (found 7 bytes, expected at least 8, the length of the header)");
  CHECK(error_of(image("{}", "", 3)) == "the file ends inside the header (found 10 bytes, expected at least 11)");
  CHECK(error_of(image("{}", "", 100'000'001)) ==
        "the length of the header (byte 0) is not valid (found 100000001, expected at most 100000000)");
  CHECK(error_of(image("{}", "")) == "");
  CHECK(error_of(image("[]", "")) == "the header is not valid (found an array, expected an object)");
  CHECK(error_of(image("{\"a\" 1}", "")) == "header:1:6: found number literal, expected ':'");
  CHECK_THAT(
      error_of(image("{\"w\":" + tensor("U8", "[0]", "[0,0]") + ",\"w\":" + tensor("U8", "[0]", "[0,0]") + "}", "")),
      Contains("found the key \"w\" twice in one object"));
  CHECK(error_of(image("{\"__metadata__\":3}", "")) ==
        "__metadata__: the header entry is not valid (found 3, expected an object of strings)");
  CHECK(error_of(image("{\"__metadata__\":{\"a\":1}}", "")) ==
        "__metadata__: the value of \"a\" is not valid (found 1, expected a string)");
}

TEST_CASE("damaged tensor entries are checkpoint errors that name the tensor", "[fast]") {
  const auto entry = [](const std::string& json, const std::string& data = "") {
    return error_of(image("{\"w\":" + json + "}", data));
  };
  CHECK(entry("3") == "tensor \"w\": the header entry is not valid (found 3, expected an object)");
  CHECK_THAT(entry(tensor("F33", "[]", "[4,0]")),
             Contains("tensor \"w\": data_offsets do not fit F33 [] (found [4, 0], expected an end behind the begin)"));
  CHECK_THAT(entry(R"({"dtype":3,"shape":[],"data_offsets":[0,0]})"),
             Contains("tensor \"w\": unknown dtype (found 3, expected one of F64, F32"));
  CHECK_THAT(entry("{}"), Contains("unknown dtype (found nothing"));
  CHECK_THAT(entry("{\"x\":1}"), Contains("unknown key in the header (found \"x\""));
  CHECK(entry(tensor("F32", "[-1]", "[0,4]")) ==
        "tensor \"w\": shape is not valid (found [-1], expected a list of integers >= 0)");
  CHECK_THAT(entry(tensor("F32", "[1.5]", "[0,4]")), Contains("shape is not valid (found [1.5]"));
  CHECK_THAT(entry(tensor("F32", "3", "[0,4]")), Contains("shape is not valid (found 3"));
  CHECK_THAT(entry(tensor("F32", "[1]", "[0]")),
             Contains("data_offsets is not valid (found [0], expected a list of 2 integers >= 0)"));
  CHECK_THAT(entry("{\"dtype\":\"F32\",\"shape\":[1]}"), Contains("data_offsets is not valid (found nothing"));
  CHECK(entry(tensor("F32", "[4294967296,4294967296]", "[0,0]")) ==
        "tensor \"w\": the shape is too large (found [4294967296, 4294967296], expected fewer than 2^64 bytes)");
  CHECK(entry(tensor("F32", "[2]", "[0,4]"), "1234") ==
        "tensor \"w\": data_offsets do not fit F32 [2] (found [0, 4], expected 8 bytes)");
  CHECK_THAT(entry(tensor("U8", "[1]", "[4,3]"), "1234"), Contains("data_offsets do not fit U8 [1] (found [4, 3]"));
}

TEST_CASE("holes, overlaps, missing and surplus data are errors", "[fast]") {
  const auto two = [](const std::string& a, const std::string& b, size_t bytes) {
    return error_of(
        image("{\"a\":" + tensor("U8", "[3]", a) + ",\"b\":" + tensor("U8", "[3]", b) + "}", std::string(bytes, 'x')));
  };
  CHECK(two("[0,3]", "[3,6]", 6) == "");
  CHECK(two("[3,6]", "[0,3]", 6) == "");
  CHECK(two("[0,3]", "[4,7]", 7) == "tensor \"b\": there is a hole before its data (found data offset 4, expected 3)");
  CHECK(two("[0,3]", "[2,5]", 5) ==
        "tensor \"b\": its data overlap another tensor's (found data offset 2, expected 3)");
  CHECK(two("[1,4]", "[4,7]", 7) == "tensor \"a\": there is a hole before its data (found data offset 1, expected 0)");
  CHECK(two("[0,3]", "[3,6]", 5) ==
        "tensor \"b\": its data end beyond the file (found data offset 6, expected at most 5)");
  CHECK(two("[0,3]", "[3,6]", 8) == "bytes after the last tensor (found 8 bytes of data, expected 6)");
}

TEST_CASE("a folder that cannot be written is a checkpoint error", "[fast]") {
  float w[] = {1.0f, -2.0f};
  CHECK_THROWS_AS(write_safetensors("/nonexistent/w", {{"w", {w, DType::f32, {2}}}}), CheckpointError);
  CHECK_THROWS_WITH(write_safetensors("/dev/full", {{"w", {w, DType::f32, {2}}}}),
                    "/dev/full: cannot write: No space left on device");
  CHECK_THROWS_AS(write_safetensors("/dev/null", {{"w", {w, DType::f32, {2}}}, {"w", {w, DType::f32, {2}}}}),
                  std::logic_error);
  CHECK_THROWS_AS(write_safetensors("/dev/null", {{"__metadata__", {w, DType::f32, {2}}}}), std::logic_error);
}
