#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "data/text/byte_source.h"

namespace hebb {

class ParquetColumn;

/// Which documents the input holds (docs/verbs/data.md).
struct TextInputOptions {
  enum class Format { automatic, text, jsonl, parquet };

  // Files, folders (all files below), patterns, "-" (standard input); each in byte order of the path.
  std::vector<std::string> inputs = {};
  // automatic: .jsonl, .ndjson, .json (before .gz, .zst) are JSONL; Parquet by its first bytes, or .parquet
  Format format = Format::automatic;
  std::string field = {};                 // JSONL member or Parquet column with the text; empty: "text", else "content"
  std::optional<std::string> split = {};  // text files: separates documents; without it a file is one
  bool replace_invalid = false;           // invalid UTF-8 becomes U+FFFD instead of an error
  uint64_t skip_bad = 0;                  // so many bad lines, documents or streams may be left out
  uint64_t longest_bytes = 1 << 30;       // a line or document is held in memory: longer ones are bad
};

/// A line, a row or a document as it stands in the file, or the reason why the file could not be read on.
struct RawDocument {
  uint32_t file = 0;  // index into RawReader::files()
  bool is_jsonl = false, is_row = false, is_compressed = false;
  uint64_t line = 0;    // JSONL: from 1; Parquet: the row, from 0
  uint64_t offset = 0;  // of `bytes` in the uncompressed file
  std::string bytes;
  std::string failure;  // message when the stream is damaged or cut off here
};

/// Goes through the input files and cuts them into raw documents. Memory: one document and one block, whatever a
/// compressed file expands to.
/// A byte order mark at the beginning of a file and blank JSONL lines are passed over; the empty rest
/// behind the last separator is no document. All other bytes stay: carriage returns and NUL too. Null in a Parquet
/// column is an empty document.
class RawReader {
 public:
  /// Errors: ConfigError for an empty separator, DataError for inputs that match nothing, for a pipe, device or
  /// socket that no input names itself, and for data sets of other programs (refuse_foreign).
  explicit RawReader(TextInputOptions options);
  ~RawReader();

  /// False at the end of the input. Damage inside a file comes as a document with `failure`; the next
  /// call goes on with the next file. Throws DataError for a file that cannot be opened.
  bool next(RawDocument& document);

  const std::vector<fs::path>& files() const { return files_; }
  /// What the user may not expect of the inputs: links that are not followed, the format of standard input.
  const std::vector<std::string>& notes() const { return notes_; }
  /// At the end of the input: that the separator is in no file, or that one has it with other line ends; else empty.
  std::string separator_warning() const;
  uint64_t files_opened() const { return files_opened_; }
  /// Position in and size of all files together, as they are on disk.
  uint64_t bytes_read() const { return finished_bytes_ + file_position(); }
  uint64_t bytes_total() const { return total_bytes_; }

 private:
  void add_input(const std::string& input);
  bool open_next();
  void begin_file();
  void begin_parquet(const fs::path& path);
  uint64_t file_position() const;
  bool cut_document(RawDocument& document);
  bool cut_at(std::string_view separator, RawDocument& document);
  bool fill();
  void take(size_t size, size_t separator, RawDocument& document);
  void look_for_line_ends(const RawDocument& document);

  TextInputOptions options_;
  std::vector<fs::path> files_;
  std::vector<std::string> notes_;
  uint64_t total_bytes_ = 0, finished_bytes_ = 0, files_opened_ = 0;
  size_t next_file_ = 0;

  std::unique_ptr<ByteSource> source_;     // of the open file
  std::unique_ptr<ParquetColumn> column_;  // of it, where it is Parquet
  bool is_jsonl_ = false, is_new_ = false, is_at_end_ = false;
  uint64_t line_ = 0, offset_ = 0;  // of buffer_[begin_]
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;  // unread part; part without a separator
  uint64_t separators_ = 0, split_files_ = 0;
  fs::path other_ends_;  // the first file that has the separator with CR LF line ends only
};

/// The text of a raw document, or what is wrong with it.
struct ParsedDocument {
  enum class State { good, empty, bad };
  State state = State::good;
  std::string text;       // valid UTF-8
  std::string problem;    // message with file, line and byte
  uint64_t replaced = 0;  // invalid pieces that became U+FFFD
};
/// Checks and extracts the text; thread-safe. Consumes raw.bytes.
ParsedDocument parse_document(RawDocument& raw, const std::vector<fs::path>& files, const TextInputOptions& options);

/// Counts of the documents that were read.
struct TextCounts {
  uint64_t files = 0, documents = 0, empty = 0, bad = 0, replaced = 0, text_bytes = 0;
};

/// Applies the rules for empty and bad documents, in document order.
class DocumentFilter {
 public:
  /// `note` receives one line for every bad document that is left out.
  DocumentFilter(uint64_t skip_bad, std::function<void(const std::string&)> note)
      : skip_bad_(skip_bad), note_(std::move(note)) {}
  /// Whether the document is to be used. Throws DataError for a bad one beyond the limit.
  bool accept(ParsedDocument::State state, const std::string& problem, uint64_t text_bytes, uint64_t replaced);
  const TextCounts& counts() const { return counts_; }

 private:
  uint64_t skip_bad_;
  std::function<void(const std::string&)> note_;
  TextCounts counts_;
};

/// The documents one after the other, on the calling thread.
class TextReader {
 public:
  /// `note` receives a line for what is left out and for what the user may not expect.
  explicit TextReader(TextInputOptions options, std::function<void(const std::string&)> note = {});
  /// False at the end. Throws DataError where DocumentFilter does.
  bool next(std::string& text);
  TextCounts counts() const;
  const RawReader& raw() const { return reader_; }

 private:
  TextInputOptions options_;
  RawReader reader_;
  std::function<void(const std::string&)> note_;
  DocumentFilter filter_;
  RawDocument document_;
};

}  // namespace hebb
