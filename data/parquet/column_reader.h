#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"
#include "data/parquet/encoding.h"
#include "data/parquet/metadata.h"

namespace hebb {

constexpr std::string_view kParquetMagic = "PAR1";

/// The strings of one column of a Parquet file, in the order of its rows. Memory: the footer, a page and a dictionary.
/// Errors: DataError naming file, row group, column and page, for damage and for what is not read: see
/// parse_parquet_footer, PageStrings.
class ParquetColumn {
 public:
  /// `field`: see parse_parquet_footer.
  ParquetColumn(const fs::path& path, const std::string& field);

  /// The next row, empty for null; false at the end. The string lives until the next call.
  bool next(std::string_view& value);

  /// Index of the row that next() gave.
  uint64_t row() const { return rows_ - 1; }
  const std::string& name() const { return schema_.name; }
  /// End of the page that is being read; the size of the file at the end.
  uint64_t file_offset() const { return offset_; }

 private:
  std::string read(uint64_t begin, uint64_t size) const;
  bool next_page();
  ParquetPageHeader read_header();
  void open_page(const ParquetPageHeader& header, std::string bytes);
  std::string unpack(std::string_view bytes, int64_t size) const;

  fs::path path_;
  Descriptor file_;
  uint64_t size_ = 0, data_end_ = 0;
  ParquetSchema schema_;

  size_t group_ = 0;         // the open row group is the one before
  uint64_t chunk_left_ = 0;  // values of its pages to come
  uint64_t page_ = 0;        // pages of it so far
  uint64_t page_left_ = 0;   // values of the open page
  uint64_t offset_ = 0;      // of the next page
  uint64_t rows_ = 0;
  std::string where_;  // the open page, for messages
  std::string data_, levels_data_, dictionary_data_;
  std::vector<std::string_view> dictionary_;
  bool has_dictionary_ = false;
  HybridReader levels_;
  PageStrings strings_;
};

}  // namespace hebb
