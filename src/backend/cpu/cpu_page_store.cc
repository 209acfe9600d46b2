#include "backend/cpu/cpu_page_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/cpu/kernels/pages/decode_page.h"
#include "backend/cpu/kernels/pages/encode_page.h"
#include "backend/cpu/kernels/pages/word_page.h"
#include "backend/wide_vectors.h"
#include "base/check.h"
#include "base/status.h"

namespace kvasir {
namespace {

constexpr std::size_t kMostOpenBytes = std::size_t{kMaxHeadDim} * 64 * 2 * sizeof(float);

// Converts halves as f16_to_f32 does. The loop has no branch, which would keep the compiler from vectors. REQUIRES:
// subnormal numbers are not taken as zero.
KVASIR_WIDE_VECTORS void open_halves(const std::byte* __restrict halves, int count, float* __restrict out) {
  typedef std::uint16_t Half [[gnu::may_alias]];
  const Half* const in = reinterpret_cast<const Half*>(halves);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t bits = in[i], magnitude = (bits & 0x7fffu) << 13;
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
    const std::uint32_t not_finite = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0u;
    out[i] = std::bit_cast<float>(scaled | not_finite | (bits & 0x8000u) << 16);
  }
}

// Copies the key of a slot, which is strided in a page, to a row.
template <std::size_t kBytes>
void gather_key(const std::byte* page, int slots, int slot, int dim, std::byte* row) {
  const std::byte* from = page + static_cast<std::size_t>(slot) * kBytes;
  for (int d = 0; d < dim; ++d, from += static_cast<std::size_t>(slots) * kBytes, row += kBytes)
    std::memcpy(row, from, kBytes);
}

}  // namespace

const float* RotationTable::of(std::int64_t position) {
  const std::size_t pairs = inverse_frequencies_.size();
  if (cached_position_.empty()) {
    cached_position_.assign(kCached, std::numeric_limits<std::int64_t>::min());
    cached_.resize(kCached * 2 * pairs);
  }
  const auto at = static_cast<std::size_t>(position & (kCached - 1));
  float* rotation = cached_.data() + at * 2 * pairs;
  if (cached_position_[at] != position) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * inverse_frequencies_[i];
      rotation[i] = static_cast<float>(std::cos(angle));
      rotation[pairs + i] = static_cast<float>(std::sin(angle));
    }
    cached_position_[at] = position;
  }
  return rotation;
}

CpuPageStore::CpuPageStore(const KernelTable* kernels, ThreadPool* threads, const std::vector<Rotation>& rotations)
    : kernels_(*kernels),
      threads_(*threads),
      rotations_(rotations.begin(), rotations.end()),
      turns_(rotations.size()) {}

CpuPageStore::~CpuPageStore() {
  for (const Arena& arena : arenas_)
    if (arena.data != nullptr) ::munmap(arena.data, arena.count * arena.page_bytes);
}

// Address space for all pages; they become resident when first written.
Status CpuPageStore::reserve(PageClass of, const PageFormat& format, std::uint64_t count) {
  Arena& arena = arenas_[static_cast<std::size_t>(of)];
  KVASIR_CHECK(arena.data == nullptr && count > 0 && count <= kMaxPagesOfClass);
  const std::size_t bytes = format.bytes();
  void* memory =
      ::mmap(nullptr, count * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return exhausted("the system has no room for {} pages of {} bytes; give the cache less memory", count, bytes)
        .about({"kv_memory"});
  arena = {format, bytes, count, static_cast<std::byte*>(memory)};
  return {};
}

void CpuPageStore::give_back(PageClass of, std::uint64_t first, std::uint64_t count) {
  const Arena& arena = arenas_[static_cast<std::size_t>(of)];
  KVASIR_CHECK(first + count <= arena.count);
  const auto system_page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = first * arena.page_bytes;
  const std::uint64_t end = begin + count * arena.page_bytes;
  // System pages that other pages share are zeroed by writing.
  const std::uint64_t whole = std::min((begin + system_page - 1) / system_page * system_page, end);
  const std::uint64_t whole_end = std::max(end / system_page * system_page, whole);
  std::memset(arena.data + begin, 0, whole - begin);
  std::memset(arena.data + whole_end, 0, end - whole_end);
  if (whole_end > whole && ::madvise(arena.data + whole, whole_end - whole, MADV_DONTNEED) != 0)
    std::memset(arena.data + whole, 0, whole_end - whole);
}

void CpuPageStore::clear(std::span<const PageId> pages) {
  for (const PageId page : pages) std::memset(data(page), 0, arena(page).page_bytes);
}

void CpuPageStore::copy(std::span<const PageId> from, std::span<const PageId> to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    KVASIR_CHECK(page_class(from[i]) == page_class(to[i]));
    std::memcpy(data(to[i]), data(from[i]), arena(to[i]).page_bytes);
  }
}

void CpuPageStore::fill_turns(ColumnLanes lanes, std::span<const SlotMove> moves) {
  for (std::vector<float>& turns : turns_) turns.clear();
  if (std::ranges::all_of(moves, [](const SlotMove& move) { return move.shift == 0; })) return;
  for (int lane = 0; lane < (lanes.rotations.empty() ? 1 : lanes.count); ++lane) {
    const auto of = static_cast<std::size_t>(lanes.rotation(lane, format(moves.front().to[lane])));
    RotationTable& rotation = rotations_[of];
    const std::size_t floats = rotation.floats();
    if (floats == 0 || !turns_[of].empty()) continue;
    turns_[of].resize(moves.size() * floats);
    for (std::size_t m = 0; m < moves.size(); ++m)
      if (moves[m].shift != 0) std::copy_n(rotation.of(moves[m].shift), floats, turns_[of].data() + m * floats);
  }
}

CpuPageStore::Turn CpuPageStore::turn_of(std::size_t move, const SlotMove& what, int rotation) const {
  const std::vector<float>& turns = turns_[static_cast<std::size_t>(rotation)];
  const int rotary = rotations_[static_cast<std::size_t>(rotation)].rotary();
  if (what.shift == 0 || turns.empty()) return {rotary};
  return {rotary, turns.data() + move * static_cast<std::size_t>(rotary)};
}

namespace {

bool has_types_of(const PageFormat& format, const PageFormat& other) {
  return format.key == other.key && (format.value == other.value || format.latent);
}

}  // namespace

const std::byte* CpuPageStore::opened(PageId page, const PageFormat& open, std::byte* room) const {
  if (has_types_of(format(page), open)) return data(page);
  decode_to_open(format(page), data(page), room);
  return room;
}

// Keys in Hadamard form are transformed back, rotated, and transformed again.
void CpuPageStore::rotate_open(const PageFormat& open, std::byte* page, SlotMask slots, Turn turn) const {
  if (open.hadamard_keys) hadamard_keys(open, page, slots);
  kernels_.rotate_keys(open, page, slots, turn.rotary, turn.cosines, turn.sines());
  if (open.hadamard_keys) hadamard_keys(open, page, slots);
}

void CpuPageStore::move_slots(const PageFormat& open, const std::byte* from, SlotMask slots, std::byte* to, int to_slot,
                              Turn turn) const {
  if (turn.cosines == nullptr || !open.hadamard_keys) {
    kernels_.move_slots(open, from, slots, to, to_slot, turn.rotary, turn.cosines, turn.sines());
    return;
  }
  kernels_.move_slots(open, from, slots, to, to_slot, turn.rotary, nullptr, nullptr);
  rotate_open(open, to, slot_range(to_slot, to_slot + std::popcount(slots)), turn);
}

void CpuPageStore::move(ColumnLanes lanes, std::span<const SlotMove> moves) {
  fill_turns(lanes, moves);
  const auto move_lane = [&](int lane) {
    alignas(64) std::byte room[kMostOpenBytes];
    const PageId* decoded = nullptr;  // what `room` holds
    for (std::size_t m = 0; m < moves.size(); ++m) {
      const SlotMove& move = moves[m];
      const PageFormat& open = format(move.to[lane]);
      const std::byte* from = room;
      if (decoded != move.from || has_types_of(format(move.from[lane]), open))
        from = opened(move.from[lane], open, room);
      if (from == room) decoded = move.from;
      move_slots(open, from, move.slots, data(move.to[lane]), move.to_slot,
                 turn_of(m, move, lanes.rotation(lane, open)));
    }
  };
  // One token's move is done sooner than other threads wake.
  if (moves.size() < 4) {
    for (int lane = 0; lane < lanes.count; ++lane) move_lane(lane);
  } else {
    threads_.parallel_for(lanes.count, move_lane);
  }
}

void CpuPageStore::repack(ColumnLanes lanes, std::span<const SlotMove> moves) {
  fill_turns(lanes, moves);
  threads_.parallel_for(lanes.count, [&](int lane) {
    alignas(64) std::byte source[kMostOpenBytes];
    alignas(64) std::byte filled[kMostOpenBytes];
    const PageId* decoded = nullptr;
    for (std::size_t m = 0; m < moves.size(); ++m) {
      const SlotMove& move = moves[m];
      const PageId target = move.to[lane];
      const PageFormat open = format(target).open();
      const bool first = m == 0 || moves[m - 1].to != move.to;
      const bool last = m + 1 == moves.size() || moves[m + 1].to != move.to;
      if (first) std::memset(filled, 0, open.bytes());
      // Copied, since the page may be written before the last of its slots has moved.
      if (std::exchange(decoded, move.from) != move.from) {
        if (const std::byte* at = opened(move.from[lane], open, source); at != source)
          std::memcpy(source, at, open.bytes());
      }
      move_slots(open, source, move.slots, filled, move.to_slot, turn_of(m, move, lanes.rotation(lane, open)));
      if (!last) continue;
      const int count = move.to_slot + std::popcount(move.slots);
      if (format(target).encoded()) {
        encode_page(format(target), filled, slot_range(0, count), data(target));
      } else {
        std::memcpy(data(target), filled, open.bytes());
      }
    }
  });
}

void CpuPageStore::seal(int lanes, std::span<const PageSeal> seals) {
  threads_.parallel_for(lanes, [&](int lane) {
    for (const PageSeal& seal : seals)
      encode_page(format(seal.to[lane]), data(seal.from[lane]), seal.live, data(seal.to[lane]));
  });
}

void CpuPageStore::rotate(ColumnLanes lanes, std::span<const SlotRotation> rotations, std::int64_t shift) {
  if (rotations.empty()) return;
  const SlotMove one{.to = rotations.front().pages, .shift = shift};
  fill_turns(lanes, {&one, 1});
  threads_.parallel_for(lanes.count, [&](int lane) {
    const Turn turn = turn_of(0, one, lanes.rotation(lane, format(one.to[lane])));
    if (turn.cosines == nullptr) return;
    alignas(64) std::byte room[kMostOpenBytes];
    for (const SlotRotation& rotation : rotations) {
      const PageId page = rotation.pages[lane];
      if (!format(page).encoded()) {
        rotate_open(format(page), data(page), rotation.slots, turn);
        continue;
      }
      decode_to_open(format(page), data(page), room);
      rotate_open(format(page).open(), room, rotation.slots, turn);
      encode_page(format(page), room, rotation.live, data(page));
    }
  });
}

void CpuPageStore::read_keys(PageId page, float* keys) const {
  const PageFormat& of = format(page);
  float by_dimension[kMaxHeadDim * 64];  // [head_dim][slots]
  if (of.key == KvType::kF16) {
    open_halves(data(page), of.head_dim * of.slots, by_dimension);
  } else {
    decode_keys(of, data(page), by_dimension);
  }
  for (int s = 0; s < of.slots; ++s)
    for (int d = 0; d < of.head_dim; ++d) keys[s * of.head_dim + d] = by_dimension[d * of.slots + s];
  if (of.hadamard_keys) hadamard(keys, of.slots, of.head_dim);
}

void CpuPageStore::read_values(PageId page, float* values) const {
  const PageFormat& of = format(page);
  if (of.value == KvType::kF16 && !of.latent) {
    open_halves(data(page) + values_offset(of), of.head_dim * of.slots, values);
  } else {
    decode_values(of, data(page), values);
  }
  if (of.transforms_values()) hadamard(values, of.slots, of.head_dim);
}

void CpuPageStore::read_rows(PageId page, int first, int count, std::byte* out) const {
  const PageFormat& of = format(page);
  KVASIR_CHECK(!of.encoded() && first >= 0 && first + count <= of.slots);
  const std::byte* from = data(page);
  if (!has_floats(of.key)) {
    for (int slot = first; slot < first + count; ++slot, out += of.row_bytes()) take_word_row(of, from, slot, out);
    return;
  }
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
  for (int slot = first; slot < first + count; ++slot, in += of.row_bytes()) {
    if (has_floats(of.key)) {
      place_row(of, in, slot, data(page));
    } else {
      place_word_row(of, in, slot, data(page));
    }
  }
}

void CpuPageStore::put_row(PageId page, int row, const std::byte* in) {
  const PageFormat& of = format(page);
  KVASIR_CHECK(!of.encoded() && row >= 0 && row < of.slots);
  std::memcpy(data(page) + static_cast<std::size_t>(row) * of.row_bytes(), in, of.row_bytes());
}

void CpuPageStore::read(PageId page, std::span<std::byte> out) const {
  KVASIR_CHECK(out.size() == arena(page).page_bytes);
  std::memcpy(out.data(), data(page), out.size());
}

void CpuPageStore::write(PageId page, std::span<const std::byte> in) {
  KVASIR_CHECK(in.size() == arena(page).page_bytes);
  std::memcpy(data(page), in.data(), in.size());
}

}  // namespace kvasir
