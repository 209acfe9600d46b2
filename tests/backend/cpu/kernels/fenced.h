// Memory that tells when a kernel leaves its bounds, whatever instructions it uses.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvasir::test {

// `count` elements that end where unreadable memory begins (but for alignment), so that a read or write behind them
// faults, masked vector stores included. What lies before and between is a pattern that intact() checks. The elements
// start as that pattern, too: as floats a small value, as f16 or int8 nothing a test would expect.
template <class T>
class Fenced {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Fenced(std::size_t count, std::size_t align = alignof(T)) : count_(count) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t body = (count * sizeof(T) + align - 1) / align * align;
    inner_ = (body + 64 + page - 1) / page * page;
    mapped_ = inner_ + 2 * page;
    void* p = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    base_ = static_cast<unsigned char*>(p);
    first_ = base_ + page;
    if (::mprotect(first_, inner_, PROT_READ | PROT_WRITE) != 0) std::abort();
    std::memset(first_, kPattern, inner_);
    data_ = first_ + inner_ - body;
  }
  explicit Fenced(std::span<const T> content, std::size_t align = alignof(T)) : Fenced(content.size(), align) {
    std::copy(content.begin(), content.end(), data());
  }
  explicit Fenced(const std::vector<T>& content, std::size_t align = alignof(T))
      : Fenced(std::span<const T>(content), align) {}
  Fenced(Fenced&& other) noexcept
      : count_(other.count_),
        inner_(other.inner_),
        mapped_(other.mapped_),
        base_(std::exchange(other.base_, nullptr)),
        first_(other.first_),
        data_(other.data_) {}
  Fenced& operator=(Fenced&&) = delete;
  ~Fenced() {
    if (base_ != nullptr) ::munmap(base_, mapped_);
  }

  T* data() { return reinterpret_cast<T*>(data_); }
  const T* data() const { return reinterpret_cast<const T*>(data_); }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  std::vector<T> copy() const { return std::vector<T>(data(), data() + count_); }

  // Nothing but the elements was written.
  bool intact() const {
    const auto is_pattern = [](unsigned char c) { return c == kPattern; };
    return std::all_of(first_, data_, is_pattern) &&
           std::all_of(data_ + count_ * sizeof(T), first_ + inner_, is_pattern);
  }
  // No byte of the element was written since construction.
  bool untouched(std::size_t i) const {
    const unsigned char* p = data_ + i * sizeof(T);
    return std::all_of(p, p + sizeof(T), [](unsigned char c) { return c == kPattern; });
  }

 private:
  static constexpr unsigned char kPattern = 0xA5;
  std::size_t count_ = 0;
  std::size_t inner_ = 0;
  std::size_t mapped_ = 0;
  unsigned char* base_ = nullptr;
  unsigned char* first_ = nullptr;
  unsigned char* data_ = nullptr;
};

// Whether two runs of floats are the same bits (zero signs and NaN included).
inline bool same_bits(const float* a, const float* b, std::size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace kvasir::test
