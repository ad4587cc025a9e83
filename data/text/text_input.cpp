#include "data/text/text_input.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/lfs_pointer.h"
#include "core/path_list.h"
#include "core/plural.h"
#include "core/utf8.h"
#include "data/parquet/column_reader.h"
#include "data/text/characters.h"
#include "data/text/foreign_data.h"
#include "data/text/jsonl.h"

namespace hebb {
namespace {

constexpr size_t kReadAtOnce = 256 * 1024;
constexpr size_t kEnoughOfFile = 1024;  // to tell what it is

bool drop_ending(std::string& name, std::string_view ending) {
  const bool is_there = name.size() > ending.size() && name.ends_with(ending);
  if (is_there) { name.resize(name.size() - ending.size()); }
  return is_there;
}

bool looks_like_jsonl(const fs::path& path) {
  std::string name = path.filename().string();
  for (const char* compression : {".gz", ".zst", ".zstd"}) {
    if (drop_ending(name, compression)) { break; }
  }
  return drop_ending(name, ".jsonl") || drop_ending(name, ".ndjson") || drop_ending(name, ".json");
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// "corpus.jsonl.gz:17: byte 5123 of the uncompressed text"
std::string place(const RawDocument& raw, const std::vector<fs::path>& files, size_t at) {
  std::string where = files[raw.file].string();
  if (raw.is_row) { return where + fmt::format(": row {:d}: byte {:d} of the text", raw.line, at); }
  if (raw.is_jsonl) { where += fmt::format(":{:d}", raw.line); }
  where += fmt::format(": byte {:d}", raw.offset + at);
  return raw.is_compressed ? where + " of the uncompressed text" : where;
}

std::string invalid_utf8_message(const RawDocument& raw, const std::vector<fs::path>& files, size_t at) {
  const std::string_view rest = std::string_view(raw.bytes).substr(at);
  const Utf8Step step = utf8_step(rest);
  // Behind the start of a character, the byte after the invalid piece is what broke it.
  const auto lead = static_cast<unsigned char>(rest[0]);
  const bool is_start = lead >= 0xC2 && lead <= 0xF4;
  const size_t shown = static_cast<size_t>(step.length) + (is_start && !step.is_cut_off ? 1 : 0);
  return DataError(place(raw, files, at), "invalid UTF-8", "bytes " + hex_bytes(rest.substr(0, shown)),
                   "valid UTF-8, or --invalid-utf8 replace")
      .what();
}

}  // namespace

RawReader::RawReader(TextInputOptions options) : options_(std::move(options)) {
  if (options_.split && options_.split->empty()) {
    throw ConfigError("--split", "an empty separator", "at least one byte");
  }
  for (const std::string& input : options_.inputs) { add_input(input); }
  for (const fs::path& file : files_) {
    if (options_.format == TextInputOptions::Format::automatic) { refuse_foreign(file); }
    std::error_code error;  // a pipe has no size
    const uintmax_t size = fs::file_size(file, error);
    total_bytes_ += error ? 0 : size;
  }
}

RawReader::~RawReader() = default;

void RawReader::add_input(const std::string& input) {
  if (input == "-") {
    files_.emplace_back("/dev/stdin");
    if (options_.format == TextInputOptions::Format::automatic && !options_.split) {
      notes_.emplace_back("standard input is read as the text of one document (--format jsonl: one a line)");
    }
    return;
  }
  std::error_code error;
  std::vector<fs::path> links;
  const std::vector<fs::path> found = fs::is_directory(input, error) ? files_below(input, links) : expand_paths(input);
  for (const fs::path& file : found) {
    if (file != input && is_special_file(file)) {
      throw DataError(file.string(), "not a file", "a pipe, a device or a socket in " + input,
                      "files; one of these is read where an input names it");
    }
    files_.push_back(file);
  }
  if (!links.empty()) {
    notes_.push_back(plural(links.size(), "link") + " to folders not followed: " + links.front().string() +
                     (links.size() > 1 ? ", ..." : ""));
  }
}

bool RawReader::open_next() {
  if (next_file_ == files_.size()) { return false; }
  const fs::path& path = files_[next_file_++];
  source_ = ByteSource::open(path);
  ++files_opened_;
  is_jsonl_ = options_.format == TextInputOptions::Format::jsonl ||
              (options_.format == TextInputOptions::Format::automatic && looks_like_jsonl(path));
  is_new_ = true;
  is_at_end_ = false;
  line_ = offset_ = 0;
  begin_ = searched_ = 0;
  buffer_.clear();
  return true;
}

bool RawReader::next(RawDocument& document) {
  while (source_ || open_next()) {
    document = RawDocument();
    document.file = static_cast<uint32_t>(next_file_ - 1);
    document.is_jsonl = is_jsonl_;
    document.is_compressed = source_->is_compressed();
    bool has_document = false;
    try {
      has_document = cut_document(document);
    } catch (const DataError& error) {
      document.failure = error.what();
      if (is_jsonl_) { document.failure += fmt::format(", in line {:d}", line_ + 1); }
      has_document = true;
      is_at_end_ = true;
      buffer_ = {};  // the piece before the damage is not complete
      begin_ = 0;
    }
    if (has_document) { return true; }
    finished_bytes_ += file_position();
    source_.reset();
    column_.reset();
  }
  return false;
}

uint64_t RawReader::file_position() const {
  if (column_) { return column_->file_offset(); }
  return source_ ? source_->file_offset() : 0;
}

/// Passes a byte order mark over; tells Parquet and files that hold no text by their first bytes.
void RawReader::begin_file() {
  using Format = TextInputOptions::Format;
  const fs::path& path = files_[next_file_ - 1];
  while (buffer_.size() < kEnoughOfFile && fill()) {}
  if (is_at_end_ && is_lfs_pointer(buffer_)) { throw DataError(path.string(), std::string("found ") + kLfsPointer); }
  if (options_.format == Format::parquet) { return begin_parquet(path); }
  if (options_.format == Format::automatic) {
    if (buffer_.starts_with(kParquetMagic) || path.extension() == ".parquet") { return begin_parquet(path); }
    refuse_foreign_bytes(path, buffer_);
  }
  if (buffer_.starts_with(kByteOrderMark)) { begin_ = offset_ = kByteOrderMark.size(); }
}

void RawReader::begin_parquet(const fs::path& path) {
  is_jsonl_ = is_at_end_ = false;
  if (source_->is_compressed()) {
    throw DataError(path.string(), "not a Parquet file", "gzip or zstd around it",
                    "Parquet, which compresses its pages");
  }
  column_ = std::make_unique<ParquetColumn>(path, options_.field);
  buffer_ = {};
}

bool RawReader::cut_document(RawDocument& document) {
  const bool is_first = std::exchange(is_new_, false);
  if (is_first) { begin_file(); }
  if (column_) {
    std::string_view text;
    if (is_at_end_ || !column_->next(text)) { return false; }
    document.is_jsonl = false;
    document.is_row = true;
    document.line = column_->row();
    if (text.size() > options_.longest_bytes) {
      throw DataError(fmt::format("{}: row {:d}", files_[next_file_ - 1].string(), document.line),
                      "the document is too long", fmt::format("{:d} bytes", text.size()),
                      fmt::format("at most {:d} (--longest-document)", options_.longest_bytes));
    }
    document.bytes = text;
    return true;
  }
  if (is_jsonl_) {
    while (cut_at("\n", document)) {
      document.line = ++line_;
      if (!is_blank(document.bytes)) { return true; }
    }
    return false;
  }
  if (options_.split) {
    split_files_ += is_first ? 1 : 0;
    const uint64_t before = separators_;
    const bool has_document = cut_at(*options_.split, document);
    if (is_first && has_document && separators_ == before) { look_for_line_ends(document); }
    return has_document;
  }
  if (is_first) {  // an empty file is an empty document
    while (fill()) {}
    take(buffer_.size() - begin_, 0, document);
  }
  return is_first;
}

bool RawReader::cut_at(std::string_view separator, RawDocument& document) {
  while (true) {
    const size_t found = buffer_.find(separator, begin_ + searched_);
    if (found != std::string::npos) {
      take(found - begin_, separator.size(), document);
      ++separators_;
      return true;
    }
    const size_t unread = buffer_.size() - begin_;
    searched_ = unread < separator.size() ? 0 : unread - separator.size() + 1;
    if (!fill()) { break; }
  }
  if (begin_ == buffer_.size()) { return false; }
  take(buffer_.size() - begin_, 0, document);
  return true;
}

void RawReader::look_for_line_ends(const RawDocument& document) {
  const std::string& separator = *options_.split;
  if (!other_ends_.empty() || separator.find('\r') != std::string::npos) { return; }
  const std::string with_returns = replace_all(separator, "\n", "\r\n");
  if (with_returns != separator && document.bytes.find(with_returns) != std::string::npos) {
    other_ends_ = files_[document.file];
  }
}

std::string RawReader::separator_warning() const {
  if (!options_.split || split_files_ == 0) { return ""; }
  if (!other_ends_.empty()) {
    return "the separator is not in " + other_ends_.string() +
           ", which has CR LF line ends (--split with \\r\\n for each \\n)";
  }
  return separators_ > 0 ? "" : "the separator is in no text file of the input (" + plural(split_files_, "file") + ")";
}

// Reads one block more; false at the end of the file.
bool RawReader::fill() {
  if (is_at_end_) { return false; }
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  const size_t size = buffer_.size();
  if (size > options_.longest_bytes) {
    throw DataError(fmt::format("{}: byte {:d}", files_[next_file_ - 1].string(), offset_),
                    is_jsonl_ ? "the line is too long" : "the document is too long",
                    fmt::format("more than {:d} bytes", options_.longest_bytes),
                    is_jsonl_ || options_.split ? "at most so many (--longest-document)"
                                                : "at most so many (--longest-document), or --split for documents of "
                                                  "a file");
  }
  buffer_.resize(size + kReadAtOnce);
  size_t got = 0;
  try {
    got = source_->read(buffer_.data() + size, kReadAtOnce);
  } catch (...) {
    buffer_.resize(size);
    throw;
  }
  buffer_.resize(size + got);
  is_at_end_ = got == 0;
  return got > 0;
}

void RawReader::take(size_t size, size_t separator, RawDocument& document) {
  document.offset = offset_;
  if (begin_ == 0 && size == buffer_.size()) {
    document.bytes = std::move(buffer_);
    buffer_.clear();
  } else {
    document.bytes.assign(buffer_, begin_, size);
    begin_ += size + separator;
  }
  offset_ += size + separator;
  searched_ = 0;
}

ParsedDocument parse_document(RawDocument& raw, const std::vector<fs::path>& files, const TextInputOptions& options) {
  using State = ParsedDocument::State;
  ParsedDocument out;
  const auto bad = [&](std::string problem) {
    out = ParsedDocument();
    out.state = State::bad;
    out.problem = std::move(problem);
    return out;
  };
  if (!raw.failure.empty()) { return bad(std::move(raw.failure)); }
  const size_t invalid = utf8_first_invalid(raw.bytes);
  if (invalid != std::string_view::npos) {
    if (!options.replace_invalid) { return bad(invalid_utf8_message(raw, files, invalid)); }
    raw.bytes = utf8_replace_invalid(raw.bytes, out.replaced);
  }
  if (raw.is_jsonl) {
    JsonlText line = jsonl_text(raw.bytes, options.field, options.replace_invalid);
    if (!line.is_good) {
      const std::string where = place(raw, files, line.offset);
      return bad(line.expected.empty() ? DataError(where, line.problem).what()
                                       : DataError(where, line.problem, line.found, line.expected).what());
    }
    out.text = std::move(line.text);
    out.replaced += line.replaced;
  } else {
    out.text = std::move(raw.bytes);
  }
  out.state = out.text.empty() ? State::empty : State::good;
  return out;
}

bool DocumentFilter::accept(ParsedDocument::State state, const std::string& problem, uint64_t text_bytes,
                            uint64_t replaced) {
  switch (state) {
    case ParsedDocument::State::good:
      ++counts_.documents;
      counts_.text_bytes += text_bytes;
      counts_.replaced += replaced;
      return true;
    case ParsedDocument::State::empty: ++counts_.empty; return false;
    case ParsedDocument::State::bad: break;
  }
  if (counts_.bad >= skip_bad_) {
    std::string message = problem;
    if (skip_bad_ > 0) {
      message += fmt::format("; as many as --skip-bad allows ({:d}) were left out before", skip_bad_);
    }
    throw DataError("", message);
  }
  ++counts_.bad;
  if (note_) { note_("left out: " + problem); }
  return false;
}

TextReader::TextReader(TextInputOptions options, std::function<void(const std::string&)> note)
    : options_(options), reader_(options), note_(std::move(note)), filter_(options.skip_bad, note_) {
  for (const std::string& text : reader_.notes()) {
    if (note_) { note_("note: " + text); }
  }
}

bool TextReader::next(std::string& text) {
  while (reader_.next(document_)) {
    ParsedDocument parsed = parse_document(document_, reader_.files(), options_);
    if (filter_.accept(parsed.state, parsed.problem, parsed.text.size(), parsed.replaced)) {
      text = std::move(parsed.text);
      return true;
    }
  }
  if (const std::string warning = reader_.separator_warning(); note_ && !warning.empty()) {
    std::exchange(note_, nullptr)("warning: " + warning);
  }
  return false;
}

TextCounts TextReader::counts() const {
  TextCounts counts = filter_.counts();
  counts.files = reader_.files_opened();
  return counts;
}

}  // namespace hebb
