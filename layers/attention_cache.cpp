#include "layers/attention_cache.h"

#include <algorithm>

namespace hebb {
namespace {

constexpr int64_t kFirstTokens = 64;  // a full cache starts with room for these

}  // namespace

double mean_visible(const KeyRange& range, int64_t length) {
  double total = 0;
  for (int64_t p = 0; p < length; ++p) { total += static_cast<double>(p + 1 - range.first(p)); }
  return total / static_cast<double>(length);
}

AttentionCache::AttentionCache(Arena& arena, int64_t rows, int64_t kv_heads, int64_t head_dim, int64_t value_head_dim,
                               DType dtype, const KeyRange& range)
    : arena_(arena), rows_(rows), kv_heads_(kv_heads), head_dim_(head_dim), value_dim_(value_head_dim), range_(range) {
  const int64_t tokens = range_.full() ? kFirstTokens : range_.size();
  k_ = Buffer(arena_, {rows_, tokens, kv_heads_ * head_dim_}, dtype, "key cache");
  v_ = Buffer(arena_, {rows_, tokens, kv_heads_ * value_dim_}, dtype, "value cache");
}

Var AttentionCache::attend(Pass& pass, Var q, Var k, Var v, int64_t heads, double scale) {
  HEBB_ASSERT(pass.batch() == rows_ && !pass.tape.recording());
  if (range_.full()) { return attend_all(pass, q, k, v, heads, scale); }
  return pass.length() == 1 ? attend_ring(pass, q, k, v, {range_}, heads, scale)
                            : attend_line(pass, q, k, v, heads, scale);
}

void AttentionCache::take_row(Stream& stream, int64_t row, const LayerState& other, int64_t from_row, int64_t tokens) {
  const auto& from = static_cast<const AttentionCache&>(other);
  if (!range_.full()) { return copy_rows(stream, {k_, v_}, row, {from.k_, from.v_}, from_row); }
  HEBB_ASSERT(from.is_moved_ || from.length_ == tokens);
  make_room(stream, tokens - length_);
  length_ = std::max(length_, tokens);
  is_moved_ = true;
  const auto take = [&](const Tensor& to, const Tensor& cache) {
    const Shape held{tokens, to.size(2)};
    copy(stream, to.slice(row * to.size(1) * to.size(2), held),
         cache.slice(from_row * cache.size(1) * to.size(2), held));
  };
  take(k_, from.k_);
  take(v_, from.v_);
}

std::optional<int64_t> AttentionCache::launches(const NextToken& next) const {
  if (!range_.full()) { return 0; }
  const int64_t capacity = k_.tensor().size(1);
  return next.position == length_ && length_ < capacity ? std::optional(capacity) : std::nullopt;
}

Var AttentionCache::run(Pass& pass, Var q, const Tensor& k, const Tensor& v, const KeyIntervals& visible, int64_t heads,
                        double scale) const {
  const AttentionShape shape{.batch = rows_,
                             .length = pass.length(),
                             .spaces = rows_,
                             .keys = k.size(1),
                             .heads = heads,
                             .kv_heads = kv_heads_,
                             .head_dim = head_dim_,
                             .value_head_dim = value_dim_};
  return attention(pass.tape, q, pass.tape.constant(k), pass.tape.constant(v), shape, visible, scale);
}

/// Drops tokens that no row can see any more: all at once when every row begins a document, else when
/// what stays is the smaller part.
void AttentionCache::forget(Pass& pass) {
  int64_t needed = 0;  // how far back the rows' first tokens see
  for (int64_t b = 0; b < rows_; ++b) {
    needed =
        std::max(needed, -static_cast<int64_t>(pass.rows.host_doc_start()[static_cast<size_t>(b * pass.length())]));
  }
  HEBB_ASSERT(needed <= length_);
  if (length_ - needed >= needed) {
    copy_tokens(pass.stream(), k_, 0, k_, length_ - needed, needed);
    copy_tokens(pass.stream(), v_, 0, v_, length_ - needed, needed);
    length_ = needed;
  }
}

void AttentionCache::make_room(Stream& stream, int64_t tokens) {
  const int64_t capacity = k_.tensor().size(1);
  if (length_ + tokens <= capacity) { return; }
  for (Buffer* cache : {&k_, &v_}) {
    const Tensor old = cache->tensor();
    Buffer larger(arena_, items(std::max(2 * capacity, length_ + tokens), old), old.dtype,
                  cache == &k_ ? "key cache" : "value cache");
    copy_tokens(stream, larger, 0, old, 0, length_);
    *cache = std::move(larger);
  }
}

Var AttentionCache::attend_all(Pass& pass, Var q, Var k, Var v, int64_t heads, double scale) {
  const int64_t length = pass.length();
  HEBB_ASSERT(!is_moved_ || length == 1);
  if (is_moved_ || (pass.rows.in_step() &&
                    pass.rows.offset() == length_)) {  // a ring that is never full: no address depends on length_
    make_room(pass.stream(), length);
    ++length_;
    return attend_ring(pass, q, k, v, {KeyRange{.window = k_.tensor().size(1)}}, heads, scale);
  }
  forget(pass);
  make_room(pass.stream(), length);
  copy_tokens(pass.stream(), k_, length_, pass.tape.value(k).view(items(length, k_)), 0, length);
  copy_tokens(pass.stream(), v_, length_, pass.tape.value(v).view(items(length, v_)), 0, length);
  const KeyIntervals visible = visible_keys(pass, range_, length_);
  length_ += length;
  return run(pass, q, k_, v_, visible, heads, scale);
}

Var AttentionCache::attend_ring(Pass& pass, Var q, Var k, Var v, const RingSlots& slots, int64_t heads, double scale) {
  const Tensor doc_start = pass.rows.doc_start();
  hebb::run(pass.stream(),
            RingAppend{.ring = k_, .x = pass.tape.value(k).view(items(1, k_)), .doc_start = doc_start, .slots = slots});
  hebb::run(pass.stream(),
            RingAppend{.ring = v_, .x = pass.tape.value(v).view(items(1, v_)), .doc_start = doc_start, .slots = slots});
  const Buffer lo(pass.tape.arena(), {rows_, 1}, DType::i32, "first visible keys"),
      hi(pass.tape.arena(), {rows_, 1}, DType::i32, "last visible keys");
  hebb::run(pass.stream(), RingKeys{.lo = lo, .hi = hi, .doc_start = doc_start, .slots = slots});
  return run(pass, q, k_, v_, {pass.tape.constant(lo), pass.tape.constant(hi)}, heads, scale);
}

Var AttentionCache::attend_line(Pass& pass, Var q, Var k, Var v, int64_t heads, double scale) {
  Stream& stream = pass.stream();
  const RingSlots slots{range_};
  const Tensor doc_start = pass.rows.doc_start();
  const int64_t before = range_.size() - 1, length = pass.length();
  const auto lay_out = [&](const Tensor& ring, Var own) {
    Buffer line(pass.tape.arena(), items(before + length, ring), ring.dtype, "keys and values in order");
    hebb::run(stream, RingUnroll{.line = line, .ring = ring, .doc_start = doc_start, .slots = slots});
    copy_tokens(stream, line, before, pass.tape.value(own).view(items(length, ring)), 0, length);
    hebb::run(stream, RingStore{.ring = ring, .line = line, .doc_start = doc_start, .slots = slots});
    return line;
  };
  const Buffer keys = lay_out(k_, k), values = lay_out(v_, v);
  return run(pass, q, keys, values, visible_keys(pass, range_, before), heads, scale);
}

}  // namespace hebb
