#include "data/parquet/metadata.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"

namespace hebb {
namespace {

enum Repetition : int64_t { kRequired = 0, kOptional = 1, kRepeated = 2 };
constexpr int64_t kByteArray = 6;
constexpr const char* kTypeNames[] = {"booleans",        "32-bit integers",        "64-bit integers",
                                      "96-bit integers", "32-bit numbers",         "64-bit numbers",
                                      "byte strings",    "fixed-size byte strings"};

struct SchemaElement {
  int64_t type = -1, repetition = kRequired, children = 0, converted = -1;
  std::string name;
};

struct Footer {
  std::vector<SchemaElement> schema;
  int64_t rows = -1;
  std::vector<size_t> row_groups;  // where they begin, to be read when the column is known
  bool is_encrypted = false;
};

SchemaElement read_element(ThriftReader& reader) {
  SchemaElement element;
  reader.each_field([&](int64_t id, ThriftType type) {
    switch (id) {
      case 1: element.type = reader.integer(type); return true;
      case 3: element.repetition = reader.integer(type); return true;
      case 4: element.name = reader.binary(type); return true;
      case 5: element.children = reader.integer(type); return true;
      case 6: element.converted = reader.integer(type); return true;
      default: return false;
    }
  });
  return element;
}

/// A column that stands right below the root: its place among all leaves, and what it holds.
struct Leaf {
  size_t index;
  const SchemaElement* element;  // a group, too
};

/// The columns of the top level, and the number of leaves.
std::vector<Leaf> top_level(const std::vector<SchemaElement>& schema, size_t& leaves, const std::string& where) {
  std::vector<Leaf> columns;
  std::vector<int64_t> open;  // children to come, of the groups around
  leaves = 0;
  if (!schema.empty()) { open.push_back(schema[0].children); }
  for (size_t i = 1; i < schema.size(); ++i) {
    while (!open.empty() && open.back() == 0) { open.pop_back(); }
    if (open.empty()) { throw DataError(where, "the schema holds more than its root says"); }
    --open.back();
    if (open.size() == 1) { columns.push_back({leaves, &schema[i]}); }
    if (schema[i].type >= 0) {
      ++leaves;
    } else {
      if (schema[i].children < 0) { throw DataError(where, "the schema has a group of fewer than 0 columns"); }
      open.push_back(schema[i].children);
    }
  }
  if (std::any_of(open.begin(), open.end(), [](int64_t left) { return left != 0; })) {
    throw DataError(where, "the schema holds less than its root says");
  }
  return columns;
}

const Leaf& find_column(const std::vector<Leaf>& columns, const std::string& field, const std::string& where) {
  const auto named = [&](std::string_view name) -> const Leaf* {
    const Leaf* found = nullptr;
    for (const Leaf& leaf : columns) {
      if (leaf.element->name != name) { continue; }
      if (found != nullptr) { throw DataError(where, fmt::format("two columns have the name {}", name)); }
      found = &leaf;
    }
    return found;
  };
  const Leaf* found = named(field.empty() ? "text" : field);
  if (found == nullptr && field.empty()) { found = named("content"); }
  if (found == nullptr) {
    constexpr size_t kEnough = 200;
    std::string names;
    for (const Leaf& leaf : columns) {
      if (names.size() > kEnough) {
        names += ", ...";
        break;
      }
      names += (names.empty() ? "" : ", ") + leaf.element->name;
    }
    throw DataError(where, "no text", names.empty() ? "no columns" : "columns " + names,
                    field.empty() ? "a column \"text\" or \"content\" (--field)" : "a column \"" + field + "\"");
  }
  return *found;
}

void require_strings(const SchemaElement& element, const std::string& where) {
  constexpr int64_t kNone = -1, kUtf8 = 0, kEnum = 4, kJson = 19;
  const auto refuse = [&](const std::string& found) {
    throw DataError(where, "column " + element.name, found, "strings, one a row");
  };
  if (element.type < 0) { refuse("a group of columns"); }
  if (element.repetition == kRepeated) { refuse("a list in each row"); }
  if (element.type != kByteArray) {
    refuse(element.type < static_cast<int64_t>(std::size(kTypeNames)) ? kTypeNames[element.type] : "an unknown type");
  }
  if (element.converted != kNone && element.converted != kUtf8 && element.converted != kEnum &&
      element.converted != kJson) {
    refuse("bytes of another meaning");
  }
}

/// The chunk of a row group's column `index`, and the group's rows.
struct RowGroup {
  size_t columns = 0;
  int64_t rows = -1, values = -1, data_begin = -1, dictionary_begin = 0, codec = -1;
  bool is_elsewhere = false, is_encrypted = false;
};

void read_chunk_metadata(ThriftReader& reader, RowGroup& group) {
  reader.each_field([&](int64_t id, ThriftType type) {
    switch (id) {
      case 4: group.codec = reader.integer(type); return true;
      case 5: group.values = reader.integer(type); return true;
      case 9: group.data_begin = reader.integer(type); return true;
      case 11: group.dictionary_begin = reader.integer(type); return true;
      default: return false;
    }
  });
}

void read_chunk(ThriftReader& reader, RowGroup& group) {
  reader.each_field([&](int64_t id, ThriftType type) {
    if (id == 1) { group.is_elsewhere = !reader.binary(type).empty(); }
    if (id == 3) {
      reader.require(type == ThriftType::structure, "a struct");
      read_chunk_metadata(reader, group);
    }
    constexpr int64_t kCrypto = 8, kEncrypted = 9;
    group.is_encrypted = group.is_encrypted || id == kCrypto || id == kEncrypted;
    return id == 1 || id == 3;
  });
}

RowGroup read_row_group(ThriftReader& reader, size_t index) {
  RowGroup group;
  reader.each_field([&](int64_t id, ThriftType type) {
    if (id == 1) {
      reader.each_element(type, [&](ThriftType element) {
        if (group.columns++ != index) { return false; }
        reader.require(element == ThriftType::structure, "a struct");
        read_chunk(reader, group);
        return true;
      });
    } else if (id == 3) {
      group.rows = reader.integer(type);
    }
    return id == 1 || id == 3;
  });
  return group;
}

Footer read_footer(ThriftReader& reader) {
  Footer footer;
  reader.each_field([&](int64_t id, ThriftType type) {
    if (id == 2) {
      reader.each_element(type, [&](ThriftType element) {
        reader.require(element == ThriftType::structure, "a struct");
        footer.schema.push_back(read_element(reader));
        return true;
      });
    } else if (id == 3) {
      footer.rows = reader.integer(type);
    } else if (id == 4) {
      reader.each_element(type, [&](ThriftType element) {
        reader.require(element == ThriftType::structure, "a struct");
        footer.row_groups.push_back(reader.position());
        return false;
      });
    }
    constexpr int64_t kEncryption = 8;
    footer.is_encrypted = footer.is_encrypted || id == kEncryption;
    return id == 2 || id == 3 || id == 4;
  });
  return footer;
}

ParquetChunk check_row_group(const RowGroup& group, size_t leaves, uint64_t data_end, const std::string& where) {
  if (group.columns != leaves) {
    throw DataError(where, "number of columns", std::to_string(group.columns),
                    fmt::format("{:d}, as in the schema", leaves));
  }
  if (group.is_encrypted) { throw DataError(where, "the column", "encrypted data", "data without encryption"); }
  if (group.is_elsewhere) { throw DataError(where, "the column", "data in another file", "data in this file"); }
  if (group.rows < 0 || group.values != group.rows) {
    throw DataError(where, "number of values", std::to_string(group.values),
                    fmt::format("{:d}, the rows of the group", group.rows));
  }
  if (group.rows == 0) { return {}; }
  require_codec(group.codec, where);
  const bool has_dictionary = group.dictionary_begin > 0 && group.dictionary_begin < group.data_begin;
  const int64_t begin = has_dictionary ? group.dictionary_begin : group.data_begin;
  constexpr int64_t kMagicBytes = 4;
  if (begin < kMagicBytes || static_cast<uint64_t>(begin) > data_end) {
    throw DataError(where, "first page", fmt::format("byte {:d}", begin),
                    fmt::format("a byte from 4 to {:d}, where the footer begins", data_end));
  }
  return {static_cast<uint64_t>(group.values), static_cast<uint64_t>(begin), static_cast<ParquetCodec>(group.codec)};
}

}  // namespace

ParquetSchema parse_parquet_footer(std::string_view bytes, uint64_t data_end, const std::string& field,
                                   const std::string& where) {
  ThriftReader reader(bytes, where + ": footer");
  const Footer footer = read_footer(reader);
  if (footer.is_encrypted) { throw DataError(where, "the file", "encrypted columns", "data without encryption"); }
  size_t leaves = 0;
  const std::vector<Leaf> columns = top_level(footer.schema, leaves, where);
  const Leaf& column = find_column(columns, field, where);
  require_strings(*column.element, where);
  ParquetSchema schema{column.element->name, column.element->repetition == kOptional, {}};
  uint64_t rows = 0;
  for (size_t i = 0; i < footer.row_groups.size(); ++i) {
    const std::string place = fmt::format("{}: row group {:d}, column {}", where, i, schema.name);
    ThriftReader part(bytes.substr(footer.row_groups[i]), place);
    const ParquetChunk chunk = check_row_group(read_row_group(part, column.index), leaves, data_end, place);
    rows += chunk.values;
    schema.row_groups.push_back(chunk);
  }
  if (footer.rows < 0 || rows != static_cast<uint64_t>(footer.rows)) {
    throw DataError(where, "rows of all row groups", std::to_string(rows),
                    fmt::format("{:d}, as the footer says", footer.rows));
  }
  return schema;
}

ParquetPageHeader parse_page_header(ThriftReader& reader) {
  ParquetPageHeader header;
  const auto nested = [&](ThriftType type, auto on_field) {
    reader.require(type == ThriftType::structure, "a struct");
    reader.each_field(on_field);
    return true;
  };
  reader.each_field([&](int64_t id, ThriftType type) {
    switch (id) {
      case 1: header.type = reader.integer(type); return true;
      case 2: header.uncompressed = reader.integer(type); return true;
      case 3: header.compressed = reader.integer(type); return true;
      case 4: header.crc = static_cast<uint32_t>(reader.integer(type)); return true;
      case 5:
      case 7:
        return nested(type, [&](int64_t part, ThriftType part_type) {
          switch (part) {
            case 1: header.values = reader.integer(part_type); return true;
            case 2: header.encoding = reader.integer(part_type); return true;
            case 3:
              if (id == 5) { header.level_encoding = reader.integer(part_type); }
              return id == 5;
            default: return false;
          }
        });
      case 8:
        return nested(type, [&](int64_t part, ThriftType part_type) {
          switch (part) {
            case 1: header.values = reader.integer(part_type); return true;
            case 4: header.encoding = reader.integer(part_type); return true;
            case 5: header.level_bytes = reader.integer(part_type); return true;
            case 6: header.repetition_bytes = reader.integer(part_type); return true;
            case 7: header.is_compressed = reader.boolean(part_type); return true;
            default: return false;
          }
        });
      default: return false;
    }
  });
  return header;
}

}  // namespace hebb
