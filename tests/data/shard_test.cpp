#include "data/shards/shard.h"

#include <unistd.h>

#include "tests/data/shard_builder.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

const std::vector<int64_t> kTokens = {5, 6, 7, 0, 8, 9, 0, 1, 2, 3, 4};
constexpr int64_t kAnyVocab = int64_t{1} << 31;

std::vector<int32_t> read_all(const Shard& shard, int64_t vocab_size = kAnyVocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(shard.tokens()));
  shard.read(0, shard.tokens(), vocab_size, tokens.data());
  return tokens;
}

std::vector<int64_t> document_starts(const Shard& shard) {
  std::vector<int64_t> starts;
  for (int64_t d = 0; d <= shard.documents(); ++d) { starts.push_back(shard.document_start(d)); }
  return starts;
}

std::vector<int32_t> as_int32(const std::vector<int64_t>& values) { return {values.begin(), values.end()}; }

Shard open_bytes(std::string bytes, std::optional<std::string> index = std::nullopt, ShardOptions options = {}) {
  return Shard::from_bytes("x.bin", std::move(bytes), std::move(index), options);
}

// The message of opening, checksum and a read of everything.
std::string error_of(std::string bytes, std::optional<std::string> index = std::nullopt, ShardOptions options = {},
                     int64_t vocab_size = kAnyVocab) {
  return thrown<DataError>([&] {
    const Shard shard = open_bytes(std::move(bytes), std::move(index), options);
    shard.require_crc(shard.compute_crc());
    read_all(shard, vocab_size);
  });
}

}  // namespace

TEST_CASE("a shard and its index give tokens, documents and header fields", "[fast]") {
  std::string bytes = hebb_bytes(kTokens, 61);
  patch<int32_t>(bytes, 20, 59);
  patch<int32_t>(bytes, 24, 60);
  patch<uint64_t>(bytes, 32, 0x0123456789ABCDEFULL);
  const Shard shard = open_bytes(bytes, index_bytes({0, 4, 7, 11}));
  CHECK(shard.format() == Shard::Format::hebb);
  CHECK(read_all(shard) == as_int32(kTokens));
  CHECK(document_starts(shard) == std::vector<int64_t>{0, 4, 7, 11});
  CHECK(shard.has_index());
  CHECK(shard.vocab_size() == 61);
  CHECK(shard.bos() == 59);
  CHECK(shard.eos() == 60);
  CHECK(shard.tokenizer_hash() == 0x0123456789ABCDEFULL);
  CHECK(shard.stored_crc() == shard.compute_crc());
  CHECK(shard.byte_offset(3) == 1030);
}

TEST_CASE("a shard that another program wrote reads with its documents", "[fast]") {
  const Shard shard = Shard::open(std::string(HEBB_TEST_DATA) + "/golden/shard/tokens.bin", {});
  CHECK(shard.tokens() == 3683);
  CHECK(shard.documents() == 60);
  CHECK(shard.vocab_size() == 61);
  CHECK(shard.document_start(1) == 119);
  CHECK(shard.document_start(59) == 3624);
  CHECK(shard.document_start(60) == 3683);
  CHECK(shard.stored_crc() == 3993115916U);
  CHECK(shard.compute_crc() == 3993115916U);
  read_all(shard, 61);
}

TEST_CASE("the checksum can be computed in pieces", "[fast]") {
  const Shard shard = open_bytes(hebb_bytes(kTokens, 61));
  CHECK(shard.continue_crc(3, 8, shard.continue_crc(0, 3, 0)) == shard.compute_crc());
}

TEST_CASE("a file without an index is one document or is split by a token", "[fast]") {
  CHECK(document_starts(open_bytes(llmc_bytes(kTokens))) == std::vector<int64_t>{0, 11});
  CHECK(document_starts(open_bytes(llmc_bytes(kTokens), {}, {.split_token = 0})) == std::vector<int64_t>{0, 4, 7, 11});
  CHECK(document_starts(open_bytes(llmc_bytes(kTokens), {}, {.split_token = 0, .split_before = true})) ==
        std::vector<int64_t>{0, 3, 6, 11});
  CHECK(document_starts(open_bytes(llmc_bytes({0, 0, 1, 0}), {}, {.split_token = 0})) ==
        std::vector<int64_t>{0, 1, 2, 4});
  CHECK(document_starts(open_bytes(llmc_bytes({0, 0, 1, 0}), {}, {.split_token = 0, .split_before = true})) ==
        std::vector<int64_t>{0, 1, 3, 4});
  CHECK(open_bytes(llmc_bytes({})).documents() == 0);
  CHECK(open_bytes(llmc_bytes(kTokens)).format() == Shard::Format::llmc);
}

TEST_CASE("uint32 shards keep tokens above 65535", "[fast]") {
  std::string bytes(1024, '\0');
  patch<int32_t>(bytes, 0, kShardMagic32);
  patch<int32_t>(bytes, 4, 7);
  patch<int32_t>(bytes, 8, 3);
  bytes += token_bytes<uint32_t>({1, 70000, 128255});
  const Shard shard = open_bytes(bytes);
  CHECK(read_all(shard) == std::vector<int32_t>{1, 70000, 128255});
  CHECK(shard.token_type() == TokenType::u32);
  CHECK(error_of(bytes, {}, {}, 128255) ==
        "x.bin: byte 1032: token id outside the vocabulary (found 128255, expected 0 <= id < 128255)");
}

TEST_CASE("headerless files are read as the named type", "[fast]") {
  const Shard narrow = open_bytes(token_bytes<uint16_t>(kTokens), {}, {.format = "raw_u16"});
  CHECK(read_all(narrow) == as_int32(kTokens));
  CHECK(narrow.format() == Shard::Format::raw);
  CHECK(narrow.byte_offset(3) == 6);
  CHECK(read_all(open_bytes(token_bytes<uint32_t>(kTokens), {}, {.format = "raw_u32"})) == as_int32(kTokens));
  CHECK(error_of("12345", {}, {.format = "raw_u16"}) ==
        "x.bin: byte 5: file size (found 5 bytes, expected a multiple of 2)");
}

namespace {

/// A NumPy file as numpy.save writes it.
std::string numpy_bytes(const std::string& dictionary, const std::string& data, char version = 1) {
  std::string bytes("\x93NUMPY", 6);
  bytes += {version, '\0'};
  std::string text = dictionary;
  text.resize(118 - (version == 1 ? 0 : 2) - 1, ' ');
  text += '\n';
  bytes += static_cast<char>(text.size());
  bytes.append(version == 1 ? 1 : 3, '\0');
  return bytes + text + data;
}

std::string numpy_dictionary(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

}  // namespace

TEST_CASE("NumPy files of each version, type and shape are read", "[fast]") {
  for (const char version : {1, 2, 3}) {
    const std::string bytes = numpy_bytes(numpy_dictionary("<u2", "(11,)"), token_bytes<uint16_t>(kTokens), version);
    CHECK(bytes.size() == 128 + 22);
    const Shard shard = open_bytes(bytes, {}, {.split_token = 0});
    CHECK(shard.format() == Shard::Format::numpy);
    CHECK(read_all(shard) == as_int32(kTokens));
    CHECK(document_starts(shard) == std::vector<int64_t>{0, 4, 7, 11});
    CHECK(shard.byte_offset(3) == 134);
  }
  const auto read = [](const char* descr, const char* shape, const std::string& data) {
    return read_all(open_bytes(numpy_bytes(numpy_dictionary(descr, shape), data)));
  };
  const std::vector<int64_t> six = {1, 2, 3, 4, 5, 6};
  CHECK(read("|u1", "(6,)", token_bytes<uint8_t>(six)) == as_int32(six));
  CHECK(read("<u4", "(2, 3)", token_bytes<uint32_t>(six)) == as_int32(six));
  CHECK(read("<i4", "(1, 3, 2)", token_bytes<int32_t>(six)) == as_int32(six));
  CHECK(read("<i8", "(6,)", token_bytes<int64_t>(six)) == as_int32(six));
  CHECK(read("<i8", "(0, 3)", "").empty());
  CHECK(read("<u2", "()", token_bytes<uint16_t>({7})) == std::vector<int32_t>{7});
}

TEST_CASE("NumPy files that hold no tokens in C order are refused, also in a raw format", "[fast]") {
  const std::string data = token_bytes<uint16_t>(kTokens);
  const std::string good = numpy_bytes(numpy_dictionary("<u2", "(11,)"), data);
  CHECK(error_of(good, {}, {.format = "raw_u16"}) ==
        "x.bin: byte 0: format \"raw_u16\" (found a NumPy file, expected tokens without a header, or the format "
        "\"auto\")");
  CHECK(error_of(numpy_bytes(numpy_dictionary("<u2", "(11,)", "True"), data)).find("found Fortran order") !=
        std::string::npos);
  for (const char* descr : {">u2", "<f4", "<u8", "|O"}) {
    CHECK(error_of(numpy_bytes(numpy_dictionary(descr, "(11,)"), data)).find(std::string("found ") + descr) !=
          std::string::npos);
  }
  CHECK(error_of(numpy_bytes("{'descr': [('a', '<u2')], 'shape': (11,)}", data)).find("arrays of structs") !=
        std::string::npos);
  CHECK(error_of(numpy_bytes(numpy_dictionary("<u2", "(12,)"), data)) ==
        "x.bin: byte 10: number of tokens in a file of 150 bytes (found 12, expected 11)");
  CHECK(error_of(numpy_bytes(numpy_dictionary("<u2", "(4294967296, 4294967296)"), data)).find("found more than 2^63") !=
        std::string::npos);
  CHECK(error_of(numpy_bytes(numpy_dictionary("<u2", "(11,)"), data, 4)).find("version of a NumPy file") !=
        std::string::npos);
  for (size_t size = 6; size < good.size(); ++size) { CHECK(!error_of(good.substr(0, size)).empty()); }
}

TEST_CASE("the Megatron vector gives its two documents", "[fast]") {
  const std::string index = megatron_index_bytes(8, 2, {3, 2}, {0, 1, 2});
  CHECK(index.size() == 34 + 8 + 16 + 24);
  CHECK(index.substr(0, 18) == std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18));
  for (const char* format : {"megatron", "auto"}) {
    const Shard shard = open_bytes(token_bytes<uint16_t>({1, 2, 3, 4, 5}), index, {.format = format});
    CHECK(shard.format() == Shard::Format::megatron);
    CHECK(read_all(shard) == std::vector<int32_t>{1, 2, 3, 4, 5});
    CHECK(document_starts(shard) == std::vector<int64_t>{0, 3, 5});
  }
}

TEST_CASE("every Megatron integer type is read, and documents may hold several sequences", "[fast]") {
  const std::vector<int64_t> tokens = {1, 2, 3, 4, 5, 6};
  const std::vector<std::string> bins = {token_bytes<uint8_t>(tokens),
                                         token_bytes<int8_t>(tokens),
                                         token_bytes<int16_t>(tokens),
                                         token_bytes<int32_t>(tokens),
                                         token_bytes<int64_t>(tokens),
                                         "",
                                         "",
                                         token_bytes<uint16_t>(tokens)};
  const std::vector<int64_t> widths = {1, 1, 2, 4, 8, 8, 4, 2};
  for (uint8_t code = 1; code <= 8; ++code) {
    const std::string index = megatron_index_bytes(code, widths[code - 1U], {3, 0, 2, 1}, {0, 3, 3, 4});
    if (code == 6 || code == 7) {
      CHECK(error_of("", index) == std::string("x.idx: byte 17: dtype (found ") + (code == 6 ? "f64" : "f32") +
                                       ", expected an integer type, because tokens are integers)");
      continue;
    }
    const Shard shard = open_bytes(bins[code - 1U], index, {.format = "megatron"});
    CHECK(read_all(shard) == as_int32(tokens));
    CHECK(document_starts(shard) == std::vector<int64_t>{0, 5, 5, 6});
  }
  CHECK(error_of(token_bytes<int8_t>({1, -2}), megatron_index_bytes(2, 1, {2}, {0, 1})) ==
        "x.bin: byte 1: token id outside the vocabulary (found -2, expected 0 <= id < 2147483648)");
  CHECK(error_of(token_bytes<int64_t>({1, int64_t{1} << 40}), megatron_index_bytes(5, 8, {2}, {0, 1})) ==
        "x.bin: byte 8: token id outside the vocabulary (found 1099511627776, expected 0 <= id < 2147483648)");
}

TEST_CASE("a damaged Megatron index is reported with its byte", "[fast]") {
  const std::string bin = token_bytes<uint16_t>({1, 2, 3, 4, 5});
  const std::string good = megatron_index_bytes(8, 2, {3, 2}, {0, 1, 2});
  const auto damaged = [&](size_t at, auto value) {
    std::string index = good;
    patch(index, at, value);
    return error_of(bin, index, {.format = "megatron"});
  };
  CHECK(error_of(bin, good, {.format = "megatron"}).empty());
  CHECK(damaged(0, 'X') ==
        "x.idx: byte 0: magic word of the Megatron index (found other bytes, expected MMIDIDX and two zero bytes)");
  CHECK(damaged(9, uint64_t{2}) == "x.idx: byte 9: version (found 2, expected 1)");
  CHECK(damaged(17, uint8_t{9}) == "x.idx: byte 17: dtype (found 9, expected a code from 1 to 8)");
  CHECK(damaged(18, uint64_t{3})
            .starts_with("x.idx: byte 18: file size of 82 bytes does not fit the counts (found 3 sequences"));
  CHECK(damaged(18, ~uint64_t{0}).starts_with("x.idx: byte 18: "));
  CHECK(damaged(26, uint64_t{2}).starts_with("x.idx: byte 18: "));
  CHECK(damaged(34, int32_t{-1}) == "x.idx: byte 34: length of sequence 0 (found -1, expected >= 0)");
  CHECK(damaged(50, int64_t{4}) ==
        "x.idx: byte 50: byte offset of sequence 1 (found 4, expected 6, the end of the one before)");
  CHECK(damaged(58, int64_t{1}) == "x.idx: byte 58: document boundary 0 (found 1, expected 0)");
  CHECK(damaged(66, int64_t{-1}) == "x.idx: byte 66: document boundary 1 (found -1, expected 0 to 2)");
  CHECK(damaged(74, int64_t{1}) == "x.idx: byte 74: document boundary 2 (found 1, expected 2)");
  CHECK(error_of(bin + "12", good) ==
        "x.idx: byte 34: tokens of all sequences (found 5 of 2 bytes, expected the 12 bytes of the .bin file)");
  CHECK(error_of(bin, good.substr(0, 20)) ==
        "x.idx: byte 20: file ends too early (found 20 bytes, expected at least 34)");
  CHECK(error_of(bin, std::nullopt, {.format = "megatron"}) ==
        "x.bin: Megatron data needs its index (found no file x.idx, expected the .idx beside the .bin)");
  CHECK(error_of("", megatron_index_bytes(8, 2, {}, {})) ==
        "x.idx: byte 26: number of document boundaries (found 0, expected at least 1)");
}

TEST_CASE("a damaged header is reported with its byte, what was found and expected", "[fast]") {
  const std::string good = hebb_bytes(kTokens, 61);
  const auto damaged = [&](size_t at, int32_t value) {
    std::string bytes = good;
    patch(bytes, at, value);
    return error_of(bytes);
  };
  CHECK(error_of(good).empty());
  CHECK(damaged(0, 7).starts_with(
      "x.bin: byte 0: magic number (found 7, expected 20240520 (uint16) or 20240801 (uint32)"));
  CHECK(
      error_of("First Citizen:\nBefore we proceed\n")
          .starts_with("x.bin: byte 0: magic number (found text, expected token shards, which hebb data encode makes"));
  CHECK(damaged(4, 2) == "x.bin: byte 4: version (found 2, expected 1)");
  CHECK(damaged(8, 12) == "x.bin: byte 8: number of tokens in a file of 1046 bytes (found 12, expected 11)");
  CHECK(damaged(8, -1) == "x.bin: byte 8: number of tokens in a file of 1046 bytes (found -1, expected 11)");
  CHECK(damaged(12, 2) == "x.bin: byte 12: header field 3 (found 2, expected 0 or 1)");
  CHECK(damaged(16, 0) == "x.bin: byte 16: vocabulary size (found 0, expected 1 to 65536 with uint16 tokens)");
  CHECK(damaged(16, 65537) == "x.bin: byte 16: vocabulary size (found 65537, expected 1 to 65536 with uint16 tokens)");
  CHECK(damaged(20, 61) == "x.bin: byte 20: BOS id (found 61, expected -1 or an id below 61)");
  CHECK(damaged(24, -2) == "x.bin: byte 24: EOS id (found -2, expected -1 or an id below 61)");
  CHECK(damaged(1020, 1) == "x.bin: byte 1020: unused header field 255 (found 1, expected 0)");
  CHECK(error_of(good.substr(0, 3)).starts_with("x.bin: byte 0: magic number (found 3 bytes"));
  CHECK(error_of(good.substr(0, 1000)) ==
        "x.bin: byte 1000: file ends inside the header (found 1000 bytes, expected at least 1024)");
  CHECK(error_of(good + "x") ==
        "x.bin: byte 8: number of tokens in a file of 1047 bytes (found 11, expected 11 and a part of a token)");
}

TEST_CASE("a damaged index is reported with its byte, what was found and expected", "[fast]") {
  const std::string bin = hebb_bytes(kTokens, 61);
  const std::string good = index_bytes({0, 4, 7, 11});
  const auto damaged = [&](size_t at, uint64_t value) {
    std::string index = good;
    patch(index, at, value);
    return error_of(bin, with_index_crc(index));
  };
  CHECK(error_of(bin, good).empty());
  CHECK(damaged(0, 0) == "x.idx: byte 0: magic word of the index (found other bytes, expected HEBBIDX1)");
  CHECK(damaged(8, 4) == "x.idx: byte 8: number of documents in a file of 60 bytes (found 4, expected 3)");
  CHECK(damaged(8, ~uint64_t{0}).starts_with("x.idx: byte 8: number of documents"));
  CHECK(damaged(16, 12) == "x.idx: byte 16: number of tokens (found 12, expected 11, as in the shard)");
  CHECK(damaged(24, 1) == "x.idx: byte 24: start of document 0 (found 1, expected 0)");
  CHECK(damaged(40, 3) == "x.idx: byte 40: start of document 2 (found 3, expected 4 to 11)");
  CHECK(damaged(32, ~uint64_t{0})
            .starts_with("x.idx: byte 32: start of document 1 (found 18446744073709551615, expected 0 to 11)"));
  CHECK(damaged(48, 10) == "x.idx: byte 48: last offset (found 10, expected 11, the number of tokens)");
  std::string flipped = good;
  flipped[32] = static_cast<char>(flipped[32] ^ 2);
  CHECK(
      error_of(bin, flipped).starts_with("x.idx: byte 56: CRC-32 of the index does not match its 56 bytes (found 0x"));
  CHECK(error_of(bin, good.substr(0, 35)) ==
        "x.idx: byte 35: file ends too early (found 35 bytes, expected at least 36)");
  CHECK(error_of(bin, good + "x")
            .starts_with(
                "x.idx: byte 8: number of documents in a file of 61 bytes (found 3, expected 3 and a remainder)"));
}

FOLDER_TEST("a shard that is cut inside of a page reads as an error, not as zeros", "[fast]") {
  const int64_t page = ::sysconf(_SC_PAGESIZE), left = page + page / 2;
  std::vector<uint64_t> starts;
  for (int64_t d = 0; d <= page; ++d) { starts.push_back(static_cast<uint64_t>(d)); }
  const fs::path file = folder.write("x.bin", hebb_bytes(std::vector<int64_t>(static_cast<size_t>(page), 7), 61)),
                 index = folder.write("x.idx", index_bytes(starts));
  const int64_t token = (left + 8 - kShardHeaderBytes) / 2, document = (left + 8) / 8;  // behind what is left
  const Shard shard = Shard::open(file, {});
  int32_t read[4] = {};
  const auto token_error = [&](int64_t begin) {
    return thrown<LostDataError>([&] { shard.read(begin, 4, 61, read); });
  };
  const auto document_error = [&] { return thrown<LostDataError>([&] { shard.document_start(document); }); };
  CHECK(token_error(token).empty());
  CHECK(document_error().empty());
  for (const fs::path& path : {file, index}) { fs::resize_file(path, static_cast<uintmax_t>(left)); }
  CHECK(token_error(10).empty());
  CHECK(token_error(token).starts_with(file.string() + ": cannot read the mapped file: it was cut"));
  CHECK(document_error().starts_with(index.string() + ": cannot read the mapped file: it was cut"));
}

FOLDER_TEST("zeros of a shard are tokens, whatever has taken its place", "[fast]") {
  const fs::path file = folder.write("x.bin", llmc_bytes(std::vector<int64_t>(5000, 0)));
  const Shard shard = Shard::open(file, {});
  for (const bool is_replaced : {false, true}) {
    if (is_replaced) {
      fs::rename(file, folder / "old");
      folder.write("x.bin", "short");
    }
    CHECK(read_all(shard, 61) == std::vector<int32_t>(5000, 0));
  }
}
