#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"

namespace hebb {

struct TableColumn {
  enum class Kind { text, number };  // text stands left, numbers right

  TableColumn(const char* t, Kind k = Kind::text) : title(t), kind(k) {}
  TableColumn(std::string t, Kind k = Kind::text) : title(std::move(t)), kind(k) {}

  std::string title;
  Kind kind;
};

/// A table for people and programs. Cells are text, numbers, or null where there is nothing.
struct Table {
  std::vector<TableColumn> columns;
  std::vector<std::vector<Json>> rows;

  std::vector<std::string> titles() const;
  std::string markdown() const;  // numbers shortened, "–" for nothing
  std::string html() const;      // the same; titles may be cut behind the dots of a path
  std::string csv() const;       // numbers in full
};

/// A column of numbers for each title, behind `table`'s.
void add_number_columns(Table& table, const std::vector<std::string>& titles);

}  // namespace hebb
