#include "requests/swap.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "sequence/sequence_state.h"

namespace kvasir {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

SwappedSequence::SwappedSequence(SpillFile* file, const Sequence& sequence)
    : file_(file),
      pool_(&sequence.cache()->pool()),
      codec_(sequence.shape().codec()),
      adapters_(sequence.adapters().begin(), sequence.adapters().end()),
      charge_(&sequence.cache()->budget()),
      pages_(pages_in_order(sequence)),
      states_(sequence.tables().states().memory()),
      bytes_back_(sequence.bytes()) {
  ByteWriter out(&saved_);
  write_sequence(sequence, out);
  saved_.shrink_to_fit();
  plan_parts(states_.size());
}

std::unique_ptr<SwappedSequence> SwappedSequence::leave(SpillFile* file, const Sequence& sequence) {
  if (sequence.in_chunk() || sequence.part() != nullptr || !sequence.status().ok() || !sequence.offloaded().empty())
    return nullptr;
  std::unique_ptr<SwappedSequence> swap(new SwappedSequence(file, sequence));
  if (!swap->charge_.try_resize(swap->saved_.size())) return nullptr;
  swap->spilled_ = file->reserve(swap->parts_.size());
  if (swap->spilled_ == nullptr) return nullptr;
  swap->advance();
  return swap;
}

bool SwappedSequence::has_room(const SpillFile& file, const Sequence& sequence) {
  // A page more for each part, which holds whole pages alone; and states begin a part.
  const std::uint64_t page = sequence.shape().page.open().bytes() + PagePool::kPageOverhead;
  const std::uint64_t parts = sequence.tables().states().bytes() > 0 ? 2 : 1;
  return file.has_room(static_cast<std::size_t>(sequence.bytes() / (SpillFile::kPartBytes - page) + parts));
}

// Divides pages_ into parts of whole pages that fit a buffer, and then the states.
void SwappedSequence::plan_parts(std::size_t states) {
  parts_.clear();
  bytes_ = 0;
  std::size_t room = 0;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const std::size_t bytes = pool_->format(page_class(pages_[i])).bytes();
    KVASIR_CHECK(bytes <= SpillFile::kPartBytes);
    if (parts_.empty() || bytes > room) {
      parts_.push_back({i, i});
      room = SpillFile::kPartBytes;
    }
    parts_.back().end = i + 1;
    room -= bytes;
    bytes_ += bytes;
  }
  bytes_ += states;
  for (std::size_t at = 0; at < states; at = parts_.back().end_state)
    parts_.push_back({pages_.size(), pages_.size(), at, std::min(states, at + SpillFile::kPartBytes)});
}

void SwappedSequence::fail(const Status& why) {
  state_ = State::kFailed;
  status_ = why;
  spilled_.reset();
  reading_.reset();
}

Result<std::unique_ptr<Sequence>> SwappedSequence::arrive(const std::shared_ptr<LoadedModel>& model,
                                                          const std::shared_ptr<KvCache>& cache,
                                                          std::unique_ptr<RetentionPolicy> policy) {
  KVASIR_CHECK(state_ == State::kOut);
  auto sequence = std::make_unique<Sequence>(model, cache, std::move(policy), codec_, adapters_);
  ByteReader in(saved_);
  KVASIR_RETURN_IF_ERROR(read_sequence(in, sequence.get()));
  pages_ = pages_in_order(*sequence);
  states_to_ = sequence->mutable_tables().states().memory();
  plan_parts(states_to_.size());
  KVASIR_CHECK(parts_.size() == spilled_->size());
  began_ = Clock::now();
  state_ = State::kComing;
  reading_ = std::make_shared<SpillReading>(file_);
  next_ = 0;
  left_ = parts_.size();
  return sequence;
}

void SwappedSequence::turn_back() {
  KVASIR_CHECK(state_ == State::kComing);
  state_ = State::kOut;
  reading_.reset();
  pages_ = {};
  states_to_ = {};
  parts_ = {};
}

void SwappedSequence::advance() {
  if (state_ == State::kLeaving) write_parts();
  if (state_ == State::kComing) read_parts();
}

void SwappedSequence::write_parts() {
  if (!spilled_->status().ok()) return fail(spilled_->status());
  for (; next_ < parts_.size(); ++next_) {
    const std::span<std::byte> buffer = file_->buffer();
    if (buffer.empty()) return;
    const Part& part = parts_[next_];
    std::size_t at = part.end_state - part.first_state;
    std::ranges::copy(states_.subspan(part.first_state, at), buffer.begin());
    for (std::size_t i = part.first; i < part.end; ++i) {
      const std::size_t bytes = pool_->format(page_class(pages_[i])).bytes();
      pool_->store()->read(pages_[i], buffer.subspan(at, bytes));
      at += bytes;
    }
    file_->write(spilled_, next_, buffer, at);
  }
  if (!spilled_->written()) return;
  seconds_leaving_ = seconds_since(began_);
  state_ = State::kOut;
  pages_ = {};
  states_ = {};
  parts_ = {};
}

void SwappedSequence::read_parts() {
  while (const std::optional<SpillReading::Part> read = reading_->take()) {
    const Part& part = parts_[read->part];
    std::span<const std::byte> bytes = read->bytes;
    std::ranges::copy(bytes.first(part.end_state - part.first_state), states_to_.begin() + part.first_state);
    for (std::size_t i = part.first; i < part.end; ++i) {
      const std::size_t size = pool_->format(page_class(pages_[i])).bytes();
      pool_->store()->write(pages_[i], bytes.first(size));
      bytes = bytes.subspan(size);
    }
    --left_;
  }
  if (!reading_->status().ok()) return fail(reading_->status());
  while (next_ < parts_.size() && file_->read(spilled_, next_, reading_)) ++next_;
  if (left_ > 0) return;
  seconds_coming_ = seconds_since(began_);
  state_ = State::kBack;
  spilled_.reset();
  reading_.reset();
}

}  // namespace kvasir
