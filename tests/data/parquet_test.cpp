// Files that Apache Arrow wrote (tests/golden/parquet), and damage.
#include "core/error.h"
#include "core/json.h"
#include "data/parquet/codec.h"
#include "data/text/text_input.h"
#include "tests/data/compress.h"
#include "tests/mutate.h"
#include "tests/paths.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

using Texts = std::vector<std::string>;

fs::path golden(const std::string& name) { return HEBB_TEST_DATA + "/golden/parquet/" + name + ".parquet"; }

/// Every row of the file, null as an empty text.
Texts rows_of(const TextInputOptions& options) {
  RawReader reader(options);
  Texts rows;
  for (RawDocument document; reader.next(document);) {
    if (!document.failure.empty()) { throw DataError("", document.failure); }
    rows.push_back(document.bytes);
  }
  return rows;
}

/// Numbers, texts and structs in Thrift's compact protocol, as in the headers of Parquet.
struct Thrift {
  std::string bytes;
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) { bytes += static_cast<char>(value | 0x80); }
    bytes += static_cast<char>(value);
  }
  Thrift& field(int step, int type) {
    bytes += static_cast<char>(step << 4 | type);
    return *this;
  }
  Thrift& number(int step, int64_t value) {
    field(step, 6).varint(2 * static_cast<uint64_t>(value));
    return *this;
  }
  Thrift& text(int step, const std::string& value) {
    field(step, 8).varint(value.size());
    bytes += value;
    return *this;
  }
  Thrift& part(int step, const Thrift& value) {
    field(step, 12).bytes += value.bytes + '\0';
    return *this;
  }
  Thrift& list(int step, const std::vector<Thrift>& structs) {
    field(step, 9).bytes += static_cast<char>(structs.size() << 4 | 12);
    for (const Thrift& s : structs) { bytes += s.bytes + '\0'; }
    return *this;
  }
};

/// A file of one page of so many nulls. converted: what the column says that its bytes mean, -1: nothing; dictionary:
/// where it says that its dictionary begins, 0: nowhere.
std::string nulls(int64_t count, int64_t converted = -1, int64_t dictionary = 0) {
  Thrift run;
  run.varint(2 * static_cast<uint64_t>(count));
  run.bytes += '\0';
  const auto size = static_cast<int64_t>(run.bytes.size());
  const std::string page = std::string{static_cast<char>(size), 0, 0, 0} + run.bytes;
  const auto page_size = static_cast<int64_t>(page.size());
  const Thrift data = Thrift().number(1, count).number(1, 0).number(1, 3).number(1, 3);
  const std::string body =
      Thrift().number(1, 0).number(1, page_size).number(1, page_size).part(2, data).bytes + '\0' + page;
  const auto body_size = static_cast<int64_t>(body.size());
  Thrift column = Thrift().number(1, 6);
  column.field(2, 9).bytes += std::string("\x18\x04text", 6);  // path
  column.number(1, 0).number(1, count).number(1, body_size).number(1, body_size).number(2, 4);
  if (dictionary > 0) { column.number(2, dictionary); }
  const Thrift chunk = Thrift().number(2, 4).part(1, column);
  const Thrift group = Thrift().list(1, {chunk}).number(1, body_size).number(1, count);
  const Thrift root = Thrift().text(4, "schema").number(1, 1);
  Thrift leaf = Thrift().number(1, 6).number(2, 1).text(1, "text");
  if (converted >= 0) { leaf.number(2, converted); }
  const std::string footer = Thrift().number(1, 1).list(1, {root, leaf}).number(1, count).list(1, {group}).bytes + '\0';
  return "PAR1" + body + footer + std::string{static_cast<char>(footer.size()), 0, 0, 0} + "PAR1";
}

std::string refusal(const fs::path& path, const std::string& field = "") {
  return thrown<DataError>([&] { rows_of({.inputs = {path.string()}, .field = field}); });
}

}  // namespace

TEST_CASE("every encoding, page version and compression of Parquet gives the texts that Arrow wrote", "[fast]") {
  const Json cases = parse_json(read_file(HEBB_TEST_DATA + "/golden/parquet/cases.json"), "cases.json");
  for (const auto& [name, texts] : cases.members()) {
    INFO(name);
    Texts expected;
    for (const Json& text : texts.items()) { expected.push_back(text.as_string()); }
    CHECK(rows_of({.inputs = {golden(name).string()}}) == expected);
  }
  CHECK(cases.members().size() == 26);
}

FOLDER_TEST("nulls and empty strings of Parquet are empty documents, and a folder of files is read", "[fast]") {
  fs::copy_file(golden("plain-1"), folder / "b.parquet");
  fs::copy_file(golden("zstd-2"), folder / "a");  // the first bytes tell
  folder.write("c.jsonl", "{\"text\": \"line\"}\n");
  TextReader reader({.inputs = {folder.path().string()}});
  Texts texts;
  for (std::string text; reader.next(text);) { texts.push_back(text); }
  CHECK(texts.size() == 17);
  CHECK(texts.back() == "line");
  CHECK(reader.counts().empty == 8);
  CHECK(reader.counts().files == 3);
  CHECK(reader.raw().bytes_read() == reader.raw().bytes_total());
}

TEST_CASE("--field names the column, and what holds no strings is refused", "[fast]") {
  CHECK(rows_of({.inputs = {golden("types").string()}, .field = "large"}) == Texts{"p", ""});
  CHECK(rows_of({.inputs = {golden("types").string()}, .field = "raw"}) == Texts{"q", "r"});
  CHECK(refusal(golden("types")).ends_with("column content (found a group of columns, expected strings, one a row)"));
  CHECK(refusal(golden("types"), "number").ends_with("(found 64-bit integers, expected strings, one a row)"));
  CHECK(refusal(golden("types"), "none")
            .ends_with("no text (found columns content, number, large, raw, expected a column \"none\")"));
  CHECK(refusal(golden("brotli"))
            .ends_with("row group 0, column text: compression (found brotli, expected none, snappy, gzip or zstd)"));
  CHECK(refusal(golden("lz4")).find("compression (found LZ4") != std::string::npos);
}

FOLDER_TEST("a Parquet file that is cut anywhere is refused with its name", "[fast]") {
  for (const char* name : {"dictionary-1", "delta-2", "zstd-1"}) {
    const std::string bytes = read_file(golden(name));
    for (size_t size = 0; size < bytes.size(); ++size) {
      INFO(name << ", " << size << " bytes");
      REQUIRE(refusal(folder.write("cut.parquet", bytes.substr(0, size))).find("cut.parquet: ") != std::string::npos);
    }
  }
  const std::string gz("\x1F\x8B\x08", 3);
  CHECK_THROWS_AS(rows_of({.inputs = {folder.write("x.parquet", gz).string()}}), DataError);
}

FOLDER_TEST("a page that claims more nulls than pages hold is refused before it is read", "[fast]") {
  CHECK(rows_of({.inputs = {folder.write("three.parquet", nulls(3)).string()}}) == Texts(3));
  const fs::path endless = folder.write("endless.parquet", nulls(int64_t{1} << 60));
  CHECK(refusal(endless).ends_with("endless.parquet: row group 0, column text, page 0: number of values (found " +
                                   std::to_string(int64_t{1} << 60) + ", expected 0 to 2147483647)"));
}

FOLDER_TEST("byte strings are texts where they mean texts, names or JSON", "[fast]") {
  constexpr int64_t kUtf8 = 0, kEnum = 4, kDecimal = 5, kJson = 19, kBson = 20;
  for (const int64_t meaning : {kUtf8, kEnum, kJson}) {
    CHECK(rows_of({.inputs = {folder.write("f.parquet", nulls(3, meaning)).string()}}) == Texts(3));
  }
  for (const int64_t meaning : {kDecimal, kBson}) {
    CHECK(refusal(folder.write("f.parquet", nulls(3, meaning)))
              .ends_with("column text (found bytes of another meaning, expected strings, one a row)"));
  }
}

FOLDER_TEST("a dictionary that does not come before the pages of its column is none", "[fast]") {
  for (const int64_t place : {4, 5, 1000}) {  // pages begin at byte 4
    CHECK(rows_of({.inputs = {folder.write("f.parquet", nulls(3, -1, place)).string()}}) == Texts(3));
  }
}

FOLDER_TEST("a changed byte of a page with a checksum is named with row group, column and page", "[fast]") {
  std::string bytes = read_file(golden("groups"));
  const size_t length = bytes.find(std::string("\x28\0\0\0xxxx", 8));
  REQUIRE(length != std::string::npos);
  bytes[length + 10] = 'y';
  const std::string message = refusal(folder.write("f.parquet", bytes));
  CHECK(message.find("f.parquet: row group 1, column text, page 0: CRC-32 of the page") != std::string::npos);
}

FOLDER_TEST("invalid UTF-8 in a Parquet row is named with the row", "[fast]") {
  std::string bytes = read_file(golden("plain-1"));
  bytes[bytes.find("caf\xC3\xA9") + 3] = '\xFF';
  const fs::path path = folder.write("f.parquet", bytes);
  const TextInputOptions options{.inputs = {path.string()}};
  CHECK(thrown<DataError>([&] {
          TextReader reader(options);
          for (std::string text; reader.next(text);) {}
        }).find("f.parquet: row 3: byte 3 of the text: invalid UTF-8") != std::string::npos);
}

FOLDER_TEST("mutated Parquet files are read or refused with a data error", "[fast]") {
  Rng rng(5, "parquet");
  for (const char* name : {"plain-1", "dictionary-2", "delta-1", "delta-length-2", "snappy-1", "gzip-2", "zstd-1"}) {
    const std::string good = read_file(golden(name));
    for (int i = 0; i < 400; ++i) {
      std::string bytes = good;
      for (uint32_t j = 0; j <= rng.below(3); ++j) {
        bytes[4 + rng.below(static_cast<uint32_t>(bytes.size() - 12))] = static_cast<char>(rng.u32());
      }
      const fs::path path = folder.write("f.parquet", bytes);
      RawReader reader({.inputs = {path.string()}});
      int rows = 0;
      for (RawDocument document; rows < 1000 && reader.next(document);) { ++rows; }
    }
  }
}

TEST_CASE("snappy: literals, copies of each kind, and damage", "[fast]") {
  const auto unpack = [](const std::string& bytes, size_t size) {
    return decompress(ParquetCodec::snappy, bytes, size, "x");
  };
  CHECK(unpack(std::string("\x03\x08"
                           "abc"),
               3) == "abc");
  CHECK(unpack(std::string("\x0A\x08"
                           "abc\x0D\x03",
                           7),
               10) == "abcabcabca");  // copy with 1 byte of distance
  CHECK(unpack(std::string("\x0A\x08"
                           "abc\x1A\x03\x00",
                           8),
               10) == "abcabcabca");  // 2 bytes
  CHECK(unpack(std::string("\x0A\x08"
                           "abc\x1B\x03\0\0\0",
                           10),
               10) == "abcabcabca");  // 4 bytes
  CHECK(unpack(std::string("\x01\xF0\x00"
                           "a",
                           4),
               1) == "a");  // length in a byte of its own
  for (const std::string& bytes : {std::string("\x03\x08"
                                               "ab"),
                                   std::string("\x04\x08"
                                               "abc"),
                                   std::string("\x02\x08"
                                               "abc"),
                                   std::string("\x08\x08"
                                               "abc\x05\x04",
                                               7),
                                   std::string("\x08\x08"
                                               "abc\x05\x00",
                                               7),
                                   std::string("\xFF\xFF\xFF\xFF\xFF"), std::string()}) {
    CHECK_THROWS_AS(unpack(bytes, bytes.empty() ? 1 : static_cast<unsigned char>(bytes[0])), DataError);
  }
}

#if HEBB_HAVE_ZLIB
TEST_CASE("a page that goes on behind its size is refused, also where memory for it has just been filled", "[fast]") {
  for (const size_t size : {size_t{9}, size_t{1} << 16, size_t{1} << 17, (size_t{1} << 17) + 1}) {
    const std::string text(size, 'x');
    CHECK(decompress(ParquetCodec::gzip, gzip(text), size, "x") == text);
    CHECK_THROWS_WITH(decompress(ParquetCodec::gzip, gzip(text + "y"), size, "x"), Contains("found more, expected"));
    CHECK_THROWS_WITH(decompress(ParquetCodec::gzip, gzip(text), size + 1, "x"), Contains("another length"));
  }
}
#endif

FOLDER_TEST("data sets of other programs are refused with the line that converts them", "[fast]") {
  const auto refused = [](const fs::path& path) {
    return thrown<DataError>([&] { rows_of({.inputs = {path.string()}}); });
  };
  folder.write("saved/data-00000-of-00001.arrow", "\xFF\xFF\xFF\xFF\x10");
  folder.write("saved/state.json", "{}");
  CHECK(refused(folder / "saved").find("datasets.load_from_disk('" + (folder / "saved").string()) != std::string::npos);
  CHECK(refused(folder.write("x.arrow", "\xFF\xFF\xFF\xFF\x10")).find("Dataset.from_file") != std::string::npos);
  CHECK(refused(folder.write("feather", "ARROW1\0\0")).find("pyarrow.feather.read_table") != std::string::npos);
  folder.write("mds/index.json", R"({"version": 2, "shards": [{"format": "mds", "column_names": ["text"]}]})");
  CHECK(refused(folder / "mds").find("found an MDS data set") != std::string::npos);
  folder.write("lit/index.json", R"({"chunks": [], "config": {"data_format": ["int"]}})");
  CHECK(refused(folder / "lit").find("found a litdata data set") != std::string::npos);
  CHECK(refused(folder.write("x.npy", "\x93NUMPY\x01")).find("a NumPy file of tokens") != std::string::npos);
  CHECK(rows_of({.inputs = {folder.write("ok/index.json", "{\"text\": \"a\"}").string()}}).size() == 1);
}
