// A grow-only scratch array, aligned for vector loads. Growing discards its content.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace kvasir {

template <class T>
class AlignedBuffer {
 public:
  // Returns at least `count` elements, uninitialised after growth. Frees the old elements before it allocates.
  T* ensure(std::size_t count) {
    if (count > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64))));
      size_ = count;
    }
    return data_.get();
  }
  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::uint64_t bytes() const { return size_ * sizeof(T); }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace kvasir
