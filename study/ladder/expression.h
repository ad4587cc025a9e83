#pragma once
#include <functional>
#include <optional>
#include <string>

#include "core/json.h"

namespace hebb {

/// The value of a name in an expression; nothing when there is no such number.
using Lookup = std::function<std::optional<double>(const std::string& name)>;

/// Evaluates an expression of a sweep (docs/verbs/ladder.md): numbers, + - * / // %, parentheses, unary minus, ceil,
/// floor, round (half up), min, max, sqrt, log2, and names ("train.batch_size"). // and % round towards minus infinity.
/// Errors: ConfigError at `where` with the text from the place that does not fit; a result that is not finite.
double evaluate(const std::string& text, const Lookup& lookup, const std::string& where);

/// An integer where the value is integral, else a double.
Json number_json(double value);

}  // namespace hebb
