#pragma once
#include <string>
#include <vector>

#include "core/fields.h"

namespace hebb {

struct ReportPart;

/// A column of a published table.
struct PublishedColumn {
  std::string name;
  std::string key;   // of the results; empty: results have no such number
  double scale = 1;  // results times this are in the paper's unit
};

/// Numbers that a paper prints for the runs of a sweep: `published` of a sweep file (docs/verbs/ladder.md).
struct PublishedTable {
  std::string source;
  std::vector<PublishedColumn> columns;
  Json rows = Json::object();  // by run: a number or null for each column
};

void fields(Fields& f, PublishedColumn& column);
void fields(Fields& f, PublishedTable& table);

/// The results that stand beside a row: that of the run of this name, or else those of its choices on axes and grids.
std::vector<const Json*> results_of_row(const std::string& row, const std::vector<Json>& results);

/// The table of a report with the paper's numbers and those of `results` side by side. shrunk_to: "2e14 training FLOPs
/// per run" where the sweep was shrunk, else empty.
ReportPart beside_published(const PublishedTable& table, const std::vector<Json>& results,
                            const std::string& shrunk_to = "");

}  // namespace hebb
