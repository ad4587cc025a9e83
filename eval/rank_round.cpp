#include "eval/rank_round.h"

namespace hebb {
namespace {

Json failure_json(const RankFailure& failure) {
  return Json::object({{"item", failure.item},
                       {"code", static_cast<int>(failure.code)},
                       {"is_missing", failure.is_missing},
                       {"text", failure.text}});
}

RankFailure read_failure(const Json& json) {
  return {json.at("item").as_int(), static_cast<ExitCode>(json.at("code").as_int()), json.at("is_missing").as_bool(),
          json.at("text").as_string()};
}

}  // namespace

RankFailure failure_of(const Error& error, int64_t item) {
  if (error.code() == ExitCode::kComm) { throw error; }
  return {item, error.code(), dynamic_cast<const MissingFileError*>(&error) != nullptr, error.what()};
}

RankRound hold_round(HostExchange& exchange, const std::string& place, const Json& value,
                     const std::optional<RankFailure>& failure) {
  Json own = Json::object({{"place", place}, {"value", value}});
  if (failure) { own.set("failure", failure_json(*failure)); }
  RankRound round;
  for (const std::string& text : exchange.gather_texts(own.dump())) {
    const Json said = parse_json(text, "a rank");
    const Json* failed = said.find("failure");
    const bool is_outside = failed != nullptr && failed->at("item").as_int() < 0;
    if (failed != nullptr) {
      const RankFailure other = read_failure(*failed);
      if (!round.failure || other.item < round.failure->item) { round.failure = other; }
    }
    if (!is_outside && said.at("place").as_string() != place && !(failure && failure->item < 0)) {
      throw CommError("evaluation", "a rank is at " + said.at("place").as_string() + ", another one at " + place);
    }
    round.values.push_back(is_outside ? Json() : said.at("value"));
  }
  return round;
}

}  // namespace hebb
