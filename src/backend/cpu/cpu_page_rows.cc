// Single tokens of pages: rows of a key and a value.
#include <cstring>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/page_layout.h"
#include "base/check.h"

namespace kvasir {
namespace {

// Keys of a page are dimension-major; of a row, one behind the other.
template <std::size_t kBytes>
void gather_key(const std::byte* page, int slots, int slot, int dim, std::byte* row) {
  const std::byte* from = page + static_cast<std::size_t>(slot) * kBytes;
  for (int d = 0; d < dim; ++d, from += static_cast<std::size_t>(slots) * kBytes, row += kBytes)
    std::memcpy(row, from, kBytes);
}

}  // namespace

void CpuPageStore::read_rows(PageId page, int first, int count, std::byte* out) const {
  const PageFormat& of = format(page);
  KVASIR_CHECK(!of.encoded() && first >= 0 && first + count <= of.slots);
  const std::byte* from = data(page);
  const std::size_t key = kv_type_bytes(of.key);
  const std::size_t value = value_bytes(of);
  for (int slot = first; slot < first + count; ++slot, out += of.row_bytes()) {
    if (key == 2) {
      gather_key<2>(from, of.slots, slot, of.head_dim, out);
    } else {
      gather_key<4>(from, of.slots, slot, of.head_dim, out);
    }
    std::memcpy(out + key * static_cast<std::size_t>(of.head_dim),
                from + values_offset(of) + static_cast<std::size_t>(slot) * value, value);
  }
}

void CpuPageStore::write_rows(PageId page, int first, int count, const std::byte* in) {
  const PageFormat& of = format(page);
  KVASIR_CHECK(!of.encoded() && first >= 0 && first + count <= of.slots);
  for (int slot = first; slot < first + count; ++slot, in += of.row_bytes()) place_row(of, in, slot, data(page));
}

void CpuPageStore::put_row(PageId page, int row, const std::byte* in) {
  const PageFormat& of = format(page);
  KVASIR_CHECK(!of.encoded() && row >= 0 && row < of.slots);
  std::memcpy(data(page) + static_cast<std::size_t>(row) * of.row_bytes(), in, of.row_bytes());
}

}  // namespace kvasir
