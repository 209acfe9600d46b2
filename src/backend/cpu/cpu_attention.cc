#include "backend/cpu/cpu_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/integer_products.h"
#include "backend/cpu/kernels/pages/encode_page.h"
#include "backend/cpu/kernels/pages/word_page.h"
#include "base/aligned_buffer.h"
#include "base/check.h"

namespace kvasir {
namespace {

// Calls the listeners that want the layer's queries.
void report_queries(const PassTables& tables, ThreadPool& threads, const float* query) {
  const LayerShape& shape = tables.layer();
  const std::size_t dim = static_cast<std::size_t>(shape.head_dim), stride = product(shape.heads, shape.head_dim);
  for (const BatchSequence& sequence : tables.batch().sequences) {
    const int layer = tables.lanes(sequence).observed_as;
    if (sequence.listener == nullptr || layer < 0 || !sequence.listener->wants_queries()) continue;
    threads.parallel_for(shape.heads, [&](int head) {
      const float* first =
          query + static_cast<std::size_t>(sequence.first_row) * stride + product(head, shape.head_dim);
      sequence.listener->hear_queries({layer, head, 0, sequence.rows, dim, stride, first});
    });
  }
}

float temperature(const LayerShape& shape, Position position) {
  if (shape.temperature == 0) return 1;
  const Position spans = std::max<Position>(position, 0) / shape.temperature_span;
  return static_cast<float>(1 + static_cast<double>(shape.temperature) * std::log1p(static_cast<double>(spans)));
}

// Returns the first pages of a partial.
NextPages first_pages(const PassTables& tables, const AttentionTask& task, std::size_t number) {
  const BatchTable& batch = task.table->batch();
  const TablePartial& part = tables.partial(*task.table->table, number);
  NextPages pages;
  for (std::uint32_t i = 0; i < NextPages::kMost && part.begin + i < part.end; ++i) {
    if (part.frame == 0 && part.begin + i < batch.offloaded) continue;  // it may not be in memory
    pages.of[i] =
        tables.store().data(task.table->page(batch.frames[part.frame].entries[part.begin + i].column, task.head));
  }
  return pages;
}

// Replaces the pages of a partial that this pass encodes by their 16-bit form, where the task's rows read that.
void use_open_pages(const PassTables& tables, const AttentionTask& task, const TablePartial& part,
                    const PageFormat* open, const std::byte** pages, const PageFormat** formats) {
  const BatchTable& batch = task.table->batch();
  for (std::size_t s = batch.seals.size(); s > 0 && batch.seals[s - 1].first_row > task.row; --s)
    for (std::uint32_t e = part.begin; e < part.end; ++e) {
      if (batch.frames[part.frame].entries[e].column != batch.seals[s - 1].column) continue;
      pages[e - part.begin] = tables.open_page(*task.table, s - 1, task.head);
      formats[e - part.begin] = open;
    }
}

// Attends to entries in pages that have no values of their own: each is opened to floats.
void attend_latent(const KernelTable& kernels, const AttentionPartial& run, const AttentionState& into) {
  alignas(64) float room[2 * kMaxHeadDim * 64];
  const PageFormat opened{.head_dim = run.head_dim, .slots = run.slots, .key = KvType::kF32, .value = KvType::kF32};
  const PageFormat* const format = &opened;
  const auto* const page = reinterpret_cast<const std::byte*>(room);
  for (int e = 0; e < run.entries; ++e) {
    SlotMask any = 0;
    for (int row = 0; row < run.rows; ++row)
      any |= run.masks[static_cast<std::size_t>(row) * run.mask_row_stride + static_cast<std::size_t>(e)];
    if (any == 0) continue;
    kernels.open_latent(*run.formats[e], run.pages[e], room);
    AttentionPartial one = entries_of_partial(run, e, 1);
    one.pages = &page;
    one.formats = &format;
    one.next_pages = {};
    kernels.attend(one, into);
  }
}

// Attends to a partial of which the rows of the first `gathered` entries lie apart: they are put into pages, since
// entries of i16 are weighed several at a time.
void attend_put_together(const KernelTable& kernels, int gathered, const GatheredEntry* entries,
                         const AttentionPartial& run, const AttentionState& into) {
  thread_local AlignedBuffer<std::byte> room;
  const std::size_t bytes = run.formats[0]->bytes();
  if (room.size() < kPartialEntries * bytes)
    std::fill_n(room.ensure(kPartialEntries * bytes), kPartialEntries * bytes, std::byte{0});
  const std::byte* pages[kPartialEntries];
  std::copy_n(run.pages, run.entries, pages);
  for (int e = 0; e < gathered; ++e) {
    std::byte* page = room.data() + static_cast<std::size_t>(e) * bytes;
    pages[e] = page;
    int row = 0;
    for (SlotMask left = entries[e].slots; left != 0; left &= left - 1)
      place_word_row(*run.formats[e], entries[e].rows[row++], std::countr_zero(left), page);
  }
  AttentionPartial whole = run;
  whole.pages = pages;
  kernels.attend(whole, into);
}

// Attends to the first `gathered` entries of a partial, whose rows lie apart, then to the others.
void attend_gathered(const KernelTable& kernels, const CpuPageStore& store, const BatchTable& batch,
                     const TablePartial& part, int gathered, const AttentionPartial& run, const AttentionState& into) {
  const std::byte* rows[kPartialEntries * 64];
  GatheredEntry entries[kPartialEntries];
  const PageFormat& format = *run.formats[0];
  KVASIR_CHECK(!format.latent);
  const auto slots = static_cast<std::uint32_t>(format.slots);
  int count = 0;
  for (int e = 0; e < gathered; ++e) {
    const std::uint32_t entry = part.begin + static_cast<std::uint32_t>(e);
    const SlotMask live = batch.frames[part.frame].entries[entry].live;
    entries[e] = {live, rows + count};
    const std::uint32_t* row = batch.offloaded_rows.data() + batch.offloaded_first[entry];
    for (int i = std::popcount(live); i > 0; --i, ++row)
      rows[count++] = store.data(batch.offloaded_pages[*row / slots]) + std::size_t{*row % slots} * format.row_bytes();
  }
  if (!has_floats(format.key)) return attend_put_together(kernels, gathered, entries, run, into);
  kernels.attend_gathered(entries_of_partial(run, 0, gathered), entries, into);
  if (gathered < run.entries) kernels.attend(entries_of_partial(run, gathered, run.entries - gathered), into);
}

}  // namespace

void CpuAttention::attend_entries(const AttentionPartial& run, const AttentionState& into) const {
  if (run.formats[0]->latent) return attend_latent(kernels_, run, into);
  kernels_.attend(run, into);
}

// Attends to a partial of a table some of whose entries have biases.
void CpuAttention::attend_biased(const AttentionTask& task, const TablePartial& part, const AttentionPartial& run,
                                 const AttentionState& into) const {
  const BatchTable& batch = task.table->batch();
  const auto lane = static_cast<std::size_t>(task.table->lane(task.head));
  const float* biases[kPartialEntries];
  bool any = false;
  for (int e = 0; e < run.entries; ++e) {
    const float* of_lanes = batch.biases[part.first + static_cast<std::uint32_t>(e)];
    biases[e] = of_lanes != nullptr ? of_lanes + lane * static_cast<std::size_t>(run.slots) : nullptr;
    any = any || biases[e] != nullptr;
  }
  AttentionPartial biased = run;
  if (any) biased.biases = biases;
  attend_entries(biased, into);
}

void CpuAttention::rotate_queries(const float* query) {
  const LayerShape& shape = layer();
  const float scale = shape.scale != 0 ? shape.scale : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  const std::span<const LayerTable> tables = tables_.of_layer();
  std::size_t total = 0;
  for (const LayerTable& table : tables) total += table.batch().query_positions.size();
  // A table of fewer heads leaves room between its queries and the next table's.
  const std::size_t stride = row_stride();
  float* out = rotated_.ensure(total * stride);
  threads_.parallel_for(static_cast<int>(total), [&](int index) {
    const auto number = static_cast<std::size_t>(index);
    auto table = tables.begin();
    if (tables.size() > 1)
      table = std::prev(std::upper_bound(tables.begin(), tables.end(), number,
                                         [](std::size_t q, const LayerTable& t) { return q < t.first_query; }));
    const int heads = table->heads * shape.group();
    const std::size_t own = number - table->first_query;
    const std::size_t row = own % static_cast<std::size_t>(table->sequence->rows);
    const std::size_t floats = tables_.rotation_floats(*table->table);
    const float* rotation = tables_.query_rotations(*table->table) + own * floats;
    const float by = scale * temperature(shape, table->batch().key_positions[row]);
    kernels_.rope(query + (static_cast<std::size_t>(table->sequence->first_row) + row) * stride +
                      product(table->first_head * shape.group(), shape.head_dim),
                  heads, shape.head_dim, tables_.rotary(), rotation, rotation + floats / 2, by, out + number * stride);
    for (const float* factors : weights_.query_scales)
      for (int i = 0; factors != nullptr && i < heads * shape.head_dim; ++i)
        out[number * stride + static_cast<std::size_t>(i)] *= factors[i % shape.head_dim];
    // Selectors get queries before the Hadamard transform; select_slots transforms them afterwards.
    if (table->batch().format.hadamard_keys && !table->selects) hadamard(out + number * stride, heads, shape.head_dim);
  });
}

// Asks the selectors, in parallel for different lanes, and then transforms the queries that they got.
void CpuAttention::select_slots() {
  std::size_t masks = 0;
  int lanes = 0;
  for (const LayerTable& table : tables_.of_layer()) {
    if (!table.selects) continue;
    masks = table.first_read + product(table.heads, table.sequence->rows) * table.table->entries;
    lanes += table.heads;
  }
  if (lanes == 0) return;
  std::fill_n(read_.ensure(masks), masks, ~SlotMask{0});
  threads_.parallel_for(lanes, [&](int index) {
    auto table = tables_.of_layer().begin();
    for (; !table->selects || index >= table->heads; ++table)
      if (table->selects) index -= table->heads;
    const BatchTable& batch = table->batch();
    const std::size_t entries = table->table->entries;
    LaneRow lane = tables_.lane_row(*table, table->first_head + index);
    lane.frame_stride = static_cast<std::size_t>(batch.rows) * row_stride();
    lane.score_segments = kernels_.score_segments;
    float* const queries = rotated(*table, lane.head, 0, 0);
    for (int row = 0; row < batch.rows; ++row) {
      lane.row = row;
      lane.queries = queries + static_cast<std::size_t>(row) * row_stride();
      SlotMask* read =
          read_.data() + table->first_read + (product(index, batch.rows) + static_cast<std::size_t>(row)) * entries;
      table->sequence->selector->select(lane, {read, entries});
    }
    if (!batch.format.hadamard_keys) return;
    for (std::size_t q = 0; q < batch.query_positions.size(); ++q)
      hadamard(queries + q * row_stride(), lane.group, lane.head_dim);
  });
}

float* CpuAttention::rotated(const LayerTable& table, int head, std::size_t frame, int row) const {
  const std::size_t query =
      table.first_query + frame * static_cast<std::size_t>(table.batch().rows) + static_cast<std::size_t>(row);
  return rotated_.data() + query * row_stride() +
         product((head - table.first_head) * layer().group(), layer().head_dim);
}

void CpuAttention::attend(int layer, const float* query, const Weights& weights, float* out) {
  weights_ = weights;
  out_ = out;
  tables_.set_layer(layer);
  for (const BatchSequence& sequence : tables_.batch().sequences)
    if (const int number = tables_.lanes(sequence).observed_as; sequence.offloaded != nullptr && number >= 0)
      sequence.offloaded->fetch(number);
  report_queries(tables_, threads_, query);
  rotate_queries(query);
  select_slots();
  attend_unobserved();
  attend_observed();
}

void CpuAttention::add_tasks(const LayerTable& table, int begin_row, int end_row, int queries) {
  const int tile = std::max(1, queries / layer().group());
  const std::vector<SealedColumn>& seals = table.batch().seals;
  for (int head = table.first_head; head < table.first_head + table.heads; ++head) {
    std::size_t seal = 0;
    for (int row = begin_row; row < end_row;) {
      // All rows of a tile read the same form of each page.
      while (seal < seals.size() && seals[seal].first_row <= row) ++seal;
      AttentionTask task;
      task.table = &table;
      task.head = head;
      task.row = row;
      task.rows = std::min({tile, end_row - row, seal < seals.size() ? seals[seal].first_row - row : tile});
      row += task.rows;
      tasks_.push_back(task);
    }
  }
}

bool CpuAttention::splits_partials() const {
  return static_cast<int>(tasks_.size()) < 4 * threads_.threads();
}

// A tile of rows passes over all partials of its lane in order. With too few tiles for the threads (decoding),
// the partials of a tile are computed by several threads and merged in the same order: the same sums either way.
void CpuAttention::run_tasks() {
  const bool splits = splits_partials();
  std::size_t queries = 0;  // in all states
  shares_.clear();
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const std::size_t partials = tasks_[t].table->table->partials;
    tasks_[t].state = queries;
    queries += product(tasks_[t].rows, layer().group()) * (1 + (splits ? partials : 1));
    for (std::size_t p = 0; splits && p < partials; ++p)
      shares_.emplace_back(static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(p));
  }
  state_weighted_.ensure(queries * static_cast<std::size_t>(layer().head_dim));
  state_scalars_.ensure(queries * 2);

  const auto merge = [&](const AttentionTask& task, int index) {
    kernels_.merge(state(task, 0), state(task, index), task.rows * layer().group(), layer().head_dim);
  };
  if (splits && shares_.size() > tasks_.size()) {
    threads_.parallel_for(static_cast<int>(shares_.size()), [&](int index) {
      const auto share = static_cast<std::size_t>(index);
      const auto [task, partial] = shares_[share];
      // Threads take turns: this one's next share is about as far away as there are threads.
      const std::size_t later = share + static_cast<std::size_t>(threads_.threads());
      const NextPages next = later < shares_.size()
                                 ? first_pages(tables_, tasks_[shares_[later].first], shares_[later].second)
                                 : NextPages{};
      run_partial(tasks_[task], partial, 1 + static_cast<int>(partial), next);
    });
    threads_.parallel_for(static_cast<int>(tasks_.size()), [&](int index) {
      const AttentionTask& task = tasks_[static_cast<std::size_t>(index)];
      clear_total(task);
      for (int p = 0; p < static_cast<int>(task.table->table->partials); ++p) merge(task, 1 + p);
      end_task(task);
    });
    finish_recalling();
    return;
  }
  threads_.parallel_for(static_cast<int>(tasks_.size()), [&](int index) {
    const AttentionTask& task = tasks_[static_cast<std::size_t>(index)];
    clear_total(task);
    const std::size_t partials = task.table->table->partials;
    for (std::size_t p = 0; p < partials; ++p) {
      run_partial(task, p, 1, p + 1 < partials ? first_pages(tables_, task, p + 1) : NextPages{});
      merge(task, 1);
    }
    end_task(task);
  });
  finish_recalling();
}

// A sink is one more score, of a token whose value is zero.
void CpuAttention::clear_total(const AttentionTask& task) const {
  const int group = layer().group();
  const AttentionState total = state(task, 0);
  reset_states(total, task.rows * group, layer().head_dim);
  if (weights_.sinks == nullptr) return;
  for (int query = 0; query < task.rows * group; ++query) {
    total.maximum[query] = weights_.sinks[task.head * group + query % group];
    total.sum[query] = 1;
  }
}

void CpuAttention::end_task(const AttentionTask& task) {
  if (task.weights != nullptr) observed_.collect(task, state(task, 0));
  if (task.recalls()) return choose_recalled(task);
  finish_task(task);
}

AttentionState CpuAttention::state(const AttentionTask& task, int index) const {
  const std::size_t queries = product(task.rows, layer().group());
  const std::size_t at = task.state + static_cast<std::size_t>(index) * queries;
  float* scalars = state_scalars_.data() + at * 2;
  return {scalars, scalars + queries, state_weighted_.data() + at * static_cast<std::size_t>(layer().head_dim)};
}

void reset_states(const AttentionState& state, int queries, int head_dim) {
  std::fill_n(state.maximum, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, queries, 0.0F);
  std::fill_n(state.weighted, product(queries, head_dim), 0.0F);
}

bool CpuAttention::fill_masks(const AttentionTask& task, const TablePartial& part, SlotMask* masks) const {
  const BatchTable& batch = task.table->batch();
  const BatchFrame& frame = batch.frames[part.frame];
  const std::uint32_t entries = part.end - part.begin;
  for (std::uint32_t e = 0; e < entries; ++e)
    masks[e] = part.begin + e >= frame.visible_from ? frame.entries[part.begin + e].live : 0;
  for (int r = 1; r < task.rows; ++r) std::copy_n(masks, entries, masks + static_cast<std::uint32_t>(r) * entries);
  for (const MaskBlock& block : batch.blocks) {
    if (block.frame != part.frame) continue;
    const std::uint32_t begin = std::max(block.begin, part.begin), end = std::min(block.end, part.end);
    if (begin >= end) continue;
    const std::size_t width = block.end - block.begin;
    for (int r = 0; r < task.rows; ++r)
      std::copy_n(
          batch.masks.data() + block.masks + static_cast<std::size_t>(task.row + r) * width + begin - block.begin,
          end - begin, masks + static_cast<std::uint32_t>(r) * entries + begin - part.begin);
  }
  for (const HiddenBlock& block : batch.hidden) {
    if (block.frame != part.frame) continue;
    const std::uint32_t begin = std::max(block.begin, part.begin), end = std::min(block.end, part.end);
    if (begin >= end) continue;
    const int end_row = std::min(block.end_row - task.row, task.rows);
    for (int r = std::max(block.first_row - task.row, 0); r < end_row; ++r)
      std::fill_n(masks + static_cast<std::uint32_t>(r) * entries + begin - part.begin, end - begin, SlotMask{0});
  }
  if (!task.table->selects) return true;
  const SlotMask* read =
      read_.data() + task.table->first_read +
      (product(task.head - task.table->first_head, batch.rows) + static_cast<std::size_t>(task.row)) *
          task.table->table->entries +
      part.first;
  SlotMask any = 0;
  for (int r = 0; r < task.rows; ++r, read += task.table->table->entries)
    for (std::uint32_t e = 0; e < entries; ++e) any |= masks[static_cast<std::uint32_t>(r) * entries + e] &= read[e];
  return any != 0;
}

void CpuAttention::run_partial(const AttentionTask& task, std::size_t number, int index, const NextPages& next) {
  const PassTable& table = *task.table->table;
  const BatchTable& batch = *table.batch;
  const CpuPageStore& store = tables_.store();
  const TablePartial& part = tables_.partial(table, number);
  const std::byte* pages[kPartialEntries];
  const PageFormat* formats[kPartialEntries];
  SlotMask masks[kWideTile * kPartialEntries];
  const auto entries = static_cast<int>(part.end - part.begin);
  KVASIR_CHECK(entries <= kPartialEntries && task.rows <= kWideTile);
  const AttentionState into = state(task, index);
  reset_states(into, task.rows * layer().group(), layer().head_dim);
  if (!fill_masks(task, part, masks)) return;
  const int offloaded =
      part.frame == 0 ? static_cast<int>(std::clamp(batch.offloaded, part.begin, part.end) - part.begin) : 0;
  const bool gathers = offloaded > 0 && !batch.offloaded_rows.empty();
  for (int e = 0; e < entries; ++e) {
    const std::uint32_t entry = part.begin + static_cast<std::uint32_t>(e);
    const PageId page = e >= offloaded ? task.table->page(batch.frames[part.frame].entries[entry].column, task.head)
                                       : batch.offloaded_pages[gathers ? 0 : entry];
    pages[e] = gathers && e < offloaded ? nullptr : store.data(page);
    formats[e] = &store.format(page);
  }
  const PageFormat open = batch.format.open();
  use_open_pages(tables_, task, part, &open, pages, formats);
  AttentionPartial run;
  run.head_dim = layer().head_dim;
  run.softcap = layer().softcap;
  run.slots = store.slots();
  run.rows = task.rows;
  run.group = layer().group();
  run.q = rotated(*task.table, task.head, part.frame, task.row);
  run.q_row_stride = row_stride();
  run.entries = entries;
  run.pages = pages;
  run.next_pages = next;
  const std::span<const PageEntry> of_frame = batch.frames[part.frame].entries;
  const auto of_step = static_cast<std::uint64_t>(kStepSlots / store.slots());  // a power of two
  for (std::uint32_t e = 1; e < part.end - part.begin; ++e)
    if ((of_frame[part.begin + e].ordinal ^ of_frame[part.begin + e - 1].ordinal) < of_step) run.joined |= 1U << e;
  run.formats = formats;
  run.masks = masks;
  run.mask_row_stride = static_cast<std::size_t>(entries);
  if (task.weights != nullptr) {
    const auto slots = static_cast<std::size_t>(store.slots());
    run.weights = task.weights + part.first * slots;
    run.weight_stride = table.entries * slots;
    run.weight_maxima = task.weight_maxima + part.first;
    run.weight_maximum_stride = table.entries;
  }
  if (gathers) return attend_gathered(kernels_, store, batch, part, offloaded, run, into);
  if (!batch.biases.empty()) return attend_biased(task, part, run, into);
  attend_entries(run, into);
}

void CpuAttention::finish_task(const AttentionTask& task) {
  const int group = layer().group();
  const int dim = layer().head_dim;
  const AttentionState total = state(task, 0);
  for (int r = 0; r < task.rows; ++r) {
    float* out = out_ + static_cast<std::size_t>(task.table->sequence->first_row + task.row + r) * row_stride() +
                 product(task.head * group, dim);
    kernels_.finish(of_row(total, r, group, dim), group, dim, out);
    if (task.table->batch().format.transforms_values()) hadamard(out, group, dim);
  }
}

}  // namespace kvasir
