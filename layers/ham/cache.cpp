#include "layers/ham/cache.h"

#include <algorithm>

namespace hebb {
namespace {

constexpr int64_t kPage = 64;  // tokens

/// Copies `count` tokens from token `begin` of row `from_row` to token 0 of row `row`, both [B, slots, C].
void copy_list(Stream& stream, const Tensor& to, int64_t row, const Tensor& from, int64_t from_row, int64_t begin,
               int64_t count) {
  if (count > 0) {
    const int64_t channels = to.size(2);
    copy(stream, to.slice(row * to.size(1) * channels, {count, channels}),
         from.slice((from_row * from.size(1) + begin) * channels, {count, channels}));
  }
}

}  // namespace

HamCache::HamCache(Arena& arena, int64_t rows, int64_t heads, int64_t key_dim, int64_t value_dim, DType dtype)
    : arena_(arena), heads_(heads), key_dim_(key_dim), value_dim_(value_dim), lists_(static_cast<size_t>(rows)) {
  k_ = Buffer(arena_, {rows, kPage, heads_ * key_dim_}, dtype, "selected keys");
  v_ = Buffer(arena_, {rows, kPage, heads_ * value_dim_}, dtype, "selected values");
}

int64_t HamCache::tokens(int64_t row) const {
  const List& list = lists_[static_cast<size_t>(row)];
  return list.end - list.begin;
}

Buffer HamCache::held(Pass& pass) {
  HEBB_ASSERT(pass.batch() == static_cast<int64_t>(lists_.size()) && !pass.tape.recording());
  std::vector<int32_t> slots;
  for (size_t b = 0; b < lists_.size(); ++b) {
    if (!pass.rows.continues(static_cast<int64_t>(b))) { lists_[b] = {}; }
    slots.push_back(static_cast<int32_t>(lists_[b].begin));
    slots.push_back(static_cast<int32_t>(lists_[b].end));
  }
  Buffer held(arena_, {pass.batch(), 2}, DType::i32, "held slots");
  copy_to_device(pass.stream(), held, slots.data());
  return held;
}

void HamCache::make_room(Stream& stream) {
  int64_t needed = 0;
  for (const List& list : lists_) { needed = std::max(needed, list.end); }
  const int64_t slots = k_.tensor().size(1);
  if (needed <= slots) { return; }
  const int64_t larger = (std::max(needed, slots + slots / 2) + kPage - 1) / kPage * kPage;
  for (Buffer* cache : {&k_, &v_}) {
    const Tensor old = cache->tensor();
    Buffer grown(arena_, {old.size(0), larger, old.size(2)}, old.dtype,
                 cache == &k_ ? "selected keys" : "selected values");
    for (int64_t b = 0; b < old.size(0); ++b) { copy_list(stream, grown, b, old, b, 0, slots); }
    *cache = std::move(grown);
  }
}

void HamCache::take_row(Stream& stream, int64_t row, const HamCache& from, int64_t from_row) {
  const List list = from.lists_[static_cast<size_t>(from_row)];
  const int64_t count = list.end - list.begin;
  lists_[static_cast<size_t>(row)] = {0, count};
  make_room(stream);
  copy_list(stream, k_, row, from.k_, from_row, list.begin, count);
  copy_list(stream, v_, row, from.v_, from_row, list.begin, count);
}

void HamState::take_row(Stream& stream, int64_t row, const LayerState& other, int64_t from_row, int64_t tokens) {
  const auto& from = static_cast<const HamState&>(other);
  delta.take_row(stream, row, from.delta, from_row, tokens);
  cache.take_row(stream, row, from.cache, from_row);
  if (q_tail.tensor().defined()) {
    copy_rows(stream, {q_tail, k_tail, v_tail}, row, {from.q_tail, from.k_tail, from.v_tail}, from_row);
  }
}

/// Notes where the rows' last documents begin and drops what came before, once that is the larger part.
void HamCache::forget(Pass& pass, const Tensor& lo) {
  if (pass.rows.spans().size() == lists_.size()) { return; }  // one document a row
  std::vector<int32_t> first(static_cast<size_t>(pass.tokens()));
  copy_to_host(pass.stream(), first.data(), lo);
  for (size_t b = 0; b < lists_.size(); ++b) {
    List& list = lists_[b];
    list.begin = first[(b + 1) * static_cast<size_t>(pass.length()) - 1];
    const int64_t count = list.end - list.begin;
    if (count <= list.begin) {
      const auto row = static_cast<int64_t>(b);
      copy_list(pass.stream(), k_, row, k_, row, list.begin, count);
      copy_list(pass.stream(), v_, row, v_, row, list.begin, count);
      list = {0, count};
    }
  }
}

Var HamCache::attend(Pass& pass, Var q, Var k, Var v, Var factor, const HamSelection& selection, double scale) {
  Tape& tape = pass.tape;
  const std::vector<int64_t> selected =
      selection.host_selected(pass.stream());  // lists grow on the host: it waits for the device
  for (size_t b = 0; b < lists_.size(); ++b) { lists_[b].end += selected[b]; }
  make_room(pass.stream());
  const int64_t batch = pass.batch(), length = pass.length();
  const auto append = [&](const Tensor& list, Var x, Var times) {
    run(pass.stream(), PackTokens{.list = list,
                                  .x = tape.value(x).view({batch, length, list.size(2)}),
                                  .slot = tape.value(selection.slot),
                                  .factor = tape.value_or_none(times)});
  };
  append(k_, k, {});
  append(v_, v, factor);
  const AttentionShape shape{.batch = batch,
                             .length = length,
                             .spaces = batch,
                             .keys = k_.tensor().size(1),
                             .heads = heads_,
                             .kv_heads = heads_,
                             .head_dim = key_dim_,
                             .value_head_dim = value_dim_};
  const Var o = attention(tape, q, tape.constant(k_), tape.constant(v_), shape, selection.visible(), scale);
  forget(pass, tape.value(selection.lo));
  return o;
}

}  // namespace hebb
