#pragma once
#include <type_traits>
#include <utility>

namespace hebb {
namespace detail {

/// Stands for any member in the initialiser of an aggregate; never evaluated.
struct AnyMember {
  template <class T> operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class T, class... Members> constexpr int count_members() {
  if constexpr (requires { T{Members{}..., AnyMember{}}; }) {
    return count_members<T, Members..., AnyMember>();
  } else {
    return sizeof...(Members);
  }
}

}  // namespace detail

/// Members of an aggregate without arrays and bases.
template <class T> inline constexpr int member_count = detail::count_members<std::remove_const_t<T>>();

#define HEBB_MEMBERS(count, ...)  \
  if constexpr (n == count) {     \
    auto& [__VA_ARGS__] = object; \
    each(__VA_ARGS__);            \
  }

/// Calls f with each member of an aggregate without arrays and bases, of at most 36 members, in the order of their
/// declaration.
template <class T, class F> constexpr void for_each_member(T& object, F&& f) {
  constexpr int n = member_count<T>;
  static_assert(n <= 36, "for_each_member: one more line for each further member");
  const auto each = [&f](auto&... members) { (f(members), ...); };
  HEBB_MEMBERS(1, a)
  HEBB_MEMBERS(2, a, b)
  HEBB_MEMBERS(3, a, b, c)
  HEBB_MEMBERS(4, a, b, c, d)
  HEBB_MEMBERS(5, a, b, c, d, e)
  HEBB_MEMBERS(6, a, b, c, d, e, f)
  HEBB_MEMBERS(7, a, b, c, d, e, f, g)
  HEBB_MEMBERS(8, a, b, c, d, e, f, g, h)
  HEBB_MEMBERS(9, a, b, c, d, e, f, g, h, i)
  HEBB_MEMBERS(10, a, b, c, d, e, f, g, h, i, j)
  HEBB_MEMBERS(11, a, b, c, d, e, f, g, h, i, j, k)
  HEBB_MEMBERS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  HEBB_MEMBERS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  HEBB_MEMBERS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
  HEBB_MEMBERS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
  HEBB_MEMBERS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
  HEBB_MEMBERS(17, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q)
  HEBB_MEMBERS(18, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r)
  HEBB_MEMBERS(19, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s)
  HEBB_MEMBERS(20, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t)
  HEBB_MEMBERS(21, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u)
  HEBB_MEMBERS(22, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v)
  HEBB_MEMBERS(23, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w)
  HEBB_MEMBERS(24, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x)
  HEBB_MEMBERS(25, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y)
  HEBB_MEMBERS(26, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z)
  HEBB_MEMBERS(27, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa)
  HEBB_MEMBERS(28, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb)
  HEBB_MEMBERS(29, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc)
  HEBB_MEMBERS(30, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd)
  HEBB_MEMBERS(31, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd, ee)
  HEBB_MEMBERS(32, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd, ee, ff)
  HEBB_MEMBERS(33, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd, ee, ff,
               gg)
  HEBB_MEMBERS(34, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd, ee, ff,
               gg, hh)
  HEBB_MEMBERS(35, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd, ee, ff,
               gg, hh, ii)
  HEBB_MEMBERS(36, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc, dd, ee, ff,
               gg, hh, ii, jj)
}

#undef HEBB_MEMBERS

}  // namespace hebb
