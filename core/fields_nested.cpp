// Objects, lists and maps inside a configuration object, and cross-field checks.
#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"
#include "core/fields.h"
#include "core/suggest.h"

namespace hebb {

void Fields::read_into(const Json& json, const std::string& name, const Visit& visit) const {
  Fields sub(Mode::read, child_path(name));
  sub.json_ = &json;
  visit(sub);
  sub.finish();
}

Json Fields::written_by(const Visit& visit) const {
  Fields sub(Mode::write, "");
  visit(sub);
  return std::move(sub.out_);
}

void Fields::describe_into(const std::string& name, const Visit& visit) {
  Fields sub(Mode::describe, child_path(name));
  visit(sub);
  described_.insert(described_.end(), sub.described_.begin(), sub.described_.end());
}

Field& Fields::nested(std::string_view name, bool is_optional, bool has, const Visit& visit,
                      const std::function<void()>& clear) {
  Field& field = start(name, is_optional ? Type{"object or null", "an object or null"} : Type{"object", "an object"});
  const std::string key(name);
  switch (mode_) {
    case Mode::read:
      if (!field.present_) {
        if (!is_optional) {
          Json absent = Json::object();
          absent.set_origin(json_->origin());
          read_into(absent, key, visit);
        }
      } else if (is_optional && field.json_->is_null()) {
        clear();
      } else if (!field.json_->is_object()) {
        fail(name, field.json_->found(), field.expected());
      } else {
        read_into(*field.json_, key, visit);
      }
      break;
    case Mode::write: out_.set(name, has ? written_by(visit) : Json()); break;
    case Mode::describe:
      described_.back().default_value = has ? "" : "null";
      describe_into(key, visit);
      break;
  }
  return field;
}

Field& Fields::elements(std::string_view name, size_t count, const std::function<void(size_t)>& resize,
                        const std::function<void(size_t, Fields&)>& visit) {
  Field& field = start(name, {"list of objects", "a list of objects"});
  const auto write = [&] {
    Json list = Json::array();
    for (size_t i = 0; i < count; ++i) {
      list.push(written_by([&](Fields& f) { visit(i, f); }));
    }
    return list;
  };
  switch (mode_) {
    case Mode::read:
      if (!field.present_) {
        known_.back().default_text = fmt::format("{:d} elements (default)", count);
        break;
      }
      if (!field.json_->is_array()) { fail(name, field.json_->found(), field.expected()); }
      resize(field.json_->items().size());
      for (size_t i = 0; i < field.json_->items().size(); ++i) {
        read_into(field.json_->items()[i], fmt::format("{}.{:d}", field.name_, i), [&](Fields& f) { visit(i, f); });
      }
      break;
    case Mode::write: out_.set(name, write()); break;
    case Mode::describe:
      described_.back().default_value = write().dump();
      resize(1);
      describe_into(field.name_ + ".N", [&](Fields& f) { visit(0, f); });
      break;
  }
  return field;
}

Field& Fields::map(std::string_view name, const std::vector<std::string>& keys,
                   const std::function<void(const std::string& key, Fields& f)>& each) {
  Field& field = start(name, {"object with free keys", "an object"});
  switch (mode_) {
    case Mode::read:
      if (!field.present_) { break; }
      if (!field.json_->is_object()) { fail(name, field.json_->found(), field.expected()); }
      for (const Json::Member& member : field.json_->members()) {
        read_into(member.second, field.name_ + "." + member.first, [&](Fields& f) { each(member.first, f); });
      }
      break;
    case Mode::write: {
      Json object = Json::object();
      for (const std::string& key : keys) {
        object.set(key, written_by([&](Fields& f) { each(key, f); }));
      }
      out_.set(name, std::move(object));
      break;
    }
    case Mode::describe:
      described_.back().default_value = keys.empty() ? "{}" : "";
      describe_into(field.name_ + ".NAME", [&](Fields& f) { each("NAME", f); });
      break;
  }
  return field;
}

void Fields::visit_members(std::string_view name, const std::function<void(const std::string& key, Fields& f)>& each) {
  const Json* object = mode_ == Mode::read ? json_->find(name) : nullptr;
  if (object == nullptr || !object->is_object()) { return; }
  for (const Json::Member& member : object->members()) {
    Fields sub(Mode::read, child_path(std::string(name) + "." + member.first));
    sub.json_ = &member.second;
    each(member.first, sub);
  }
}

void Fields::require(bool ok, std::string_view name, std::string_view expected) {
  if (ok || mode_ != Mode::read) { return; }
  const Json* json = json_->is_object() ? json_->find(name) : nullptr;
  const Known* declared = known(name);
  std::string found = declared != nullptr ? declared->default_text : "";
  if (json != nullptr) { found = json->found(); }
  fail(name, found.empty() ? "nothing" : found, expected);
}

void Fields::fail(std::string_view name, std::string_view found, std::string_view expected) const {
  throw ConfigError(where(name), found, expected);
}

void Fields::fail(std::string_view name, std::string_view problem) const { throw ConfigError(where(name), problem); }

bool Fields::written(std::string_view name) const {
  return mode_ == Mode::read && json_->is_object() && json_->find(name) != nullptr;
}

std::string Fields::type_tag(std::string_view current, const std::vector<std::string>& known) {
  std::string type(current);
  field("type", type).required().one_of(known);
  return type;
}

namespace {

void append_cell(std::string& out, std::string_view text, const char* quote = "") {
  out += " ";
  out += text.empty() ? "" : quote;
  for (const char c : text) {
    out += c == '|' ? "\\" : "";
    out += c == '\n' ? ' ' : c;
  }
  out += text.empty() ? "" : quote;
  out += " |";
}

}  // namespace

std::string reference_markdown(const std::vector<Fields::Description>& descriptions) {
  std::string out = "| key | type | default | constraint | unit | meaning |\n|---|---|---|---|---|---|\n";
  for (const Fields::Description& d : descriptions) {
    out += "|";
    append_cell(out, d.path, "`");
    append_cell(out, d.type);
    append_cell(out, d.required ? "required" : d.default_value, d.required ? "" : "`");
    append_cell(out, d.constraint);
    append_cell(out, d.unit);
    append_cell(out, d.help);
    out += "\n";
  }
  return out;
}

}  // namespace hebb
