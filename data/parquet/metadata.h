#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet/codec.h"
#include "data/parquet/thrift.h"

namespace hebb {

/// The part of a column that a row group holds.
struct ParquetChunk {
  uint64_t values = 0;  // nulls count
  uint64_t begin = 0;   // of its first page in the file
  ParquetCodec codec = ParquetCodec::none;
};

/// A column of strings.
struct ParquetSchema {
  std::string name;
  bool is_optional = false;  // may hold nulls
  std::vector<ParquetChunk> row_groups;
};

/// Reads the footer of a Parquet file whose pages end at byte `data_end`, and finds the column `field`; an empty
/// `field` is "text", else "content". Other columns are passed over.
/// Errors: DataError naming `where` and row group: damage, sizes beyond the file, no such column, another type, nested
/// or encrypted data, data in other files, a codec that is not read.
/// Source: parquet.thrift of Apache Parquet.
ParquetSchema parse_parquet_footer(std::string_view footer, uint64_t data_end, const std::string& field,
                                   const std::string& where);

/// In front of each page.
struct ParquetPageHeader {
  enum Type : int64_t { data = 0, index = 1, dictionary = 2, data_v2 = 3 };
  int64_t type = -1;
  int64_t uncompressed = -1, compressed = -1;  // sizes
  std::optional<uint32_t> crc;                 // of the compressed page
  int64_t values = -1, encoding = -1;
  int64_t level_encoding = 3;                     // version 1
  int64_t level_bytes = 0, repetition_bytes = 0;  // version 2
  bool is_compressed = true;
};
/// Errors: DataError at the reader's place for damage, ThriftCutOff where the header is longer.
ParquetPageHeader parse_page_header(ThriftReader& reader);

}  // namespace hebb
