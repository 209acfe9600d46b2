// Takes session files apart and puts them together again with right checksums, for tests that change what is in them.
// Thread-safety: none.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"

namespace kvasir::test {

// The blocks of a session file, in order: head, state, pages, end.
struct SessionBlocks {
  struct Block {
    std::uint32_t tag = 0;
    std::vector<std::byte> bytes;
  };
  std::vector<std::byte> magic;
  std::vector<Block> blocks;

  explicit SessionBlocks(std::span<const std::byte> file) : magic(file.begin(), file.begin() + 8) {
    for (std::size_t at = 8; at < file.size();) {
      std::uint64_t length = 0;
      Block block;
      std::memcpy(&block.tag, file.data() + at, 4);
      std::memcpy(&length, file.data() + at + 8, 8);
      const auto bytes = file.subspan(at + 16, static_cast<std::size_t>(length));
      block.bytes.assign(bytes.begin(), bytes.end());
      blocks.push_back(std::move(block));
      at += 32 + static_cast<std::size_t>(length);
    }
  }
  std::vector<std::byte>& head() { return blocks[0].bytes; }
  std::vector<std::byte>& state() { return blocks[1].bytes; }

  std::vector<std::byte> file() const {
    std::vector<std::byte> out = magic;
    ByteWriter writer(&out);
    for (const Block& block : blocks) {
      const std::size_t begin = out.size();
      writer.put(block.tag);
      writer.put(std::uint32_t{0});
      writer.put_vector(block.bytes);
      Hasher hasher;
      hasher.add(std::span<const std::byte>(out).subspan(begin));
      const Hash128 hash = hasher.digest();
      writer.put(hash.low);
      writer.put(hash.high);
    }
    return out;
  }
};

// The head of a session file.
struct SavedHead {
  std::uint64_t low = 0, high = 0;
  std::string arithmetic, policy, kv_type;
  std::int32_t slots = 0, chunk = 0;

  explicit SavedHead(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    in.get(low), in.get(high);
    in.get_string(arithmetic, 1024), in.get_string(policy, 4096), in.get_string(kv_type, 64);
    in.get(slots), in.get(chunk);
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    ByteWriter writer(&out);
    writer.put(low), writer.put(high);
    writer.put_string(arithmetic), writer.put_string(policy), writer.put_string(kv_type);
    writer.put(slots), writer.put(chunk);
    return out;
  }
};

// The first page table of a file's state, and all that follows it.
struct SavedTable {
  struct Column {
    std::uint64_t live = 0, ordinal = 0;
    std::int64_t first = 0, base = 0;
    std::vector<std::uint32_t> offsets;  // lists
    std::int32_t used = 0;
  };
  struct Run {
    std::uint64_t next_ordinal = 0;
    std::uint32_t tail = 0;
  };
  struct Entry {
    std::uint64_t live = 0;
    std::uint32_t column = 0;
  };
  struct Frame {
    std::int64_t origin = 0, rotation = 0;
    std::int32_t run = 0;
    std::int64_t tokens = 0;
    std::vector<Entry> entries;
  };
  bool lists = false;
  std::int64_t next_index = 0, length = 0;
  bool original = false;
  std::int64_t given_begin = 0, given_end = 0;
  std::vector<Column> columns;
  std::vector<Run> runs;
  std::vector<Frame> frames;
  std::vector<std::byte> rest;

  SavedTable(std::span<const std::byte> state, bool of_lists, std::size_t run_count) : lists(of_lists) {
    ByteReader in(state);
    std::uint64_t count = 0;
    in.get(next_index), in.get(length), in.get(original), in.get(given_begin), in.get(given_end), in.get(count);
    columns.resize(static_cast<std::size_t>(count));
    for (Column& c : columns) {
      in.get(c.live), in.get(c.ordinal), in.get(c.first), in.get(c.base), in.get(c.used);
      c.offsets.resize(lists ? static_cast<std::size_t>(c.used) : 0);
      in.get_values(std::span<std::uint32_t>(c.offsets));
    }
    runs.resize(run_count);
    for (Run& run : runs) in.get(run.next_ordinal), in.get(run.tail);
    std::uint32_t frame_count = 0;
    in.get(frame_count);
    frames.resize(frame_count);
    for (Frame& frame : frames) {
      in.get(frame.origin), in.get(frame.rotation), in.get(frame.run), in.get(frame.tokens), in.get(count);
      frame.entries.resize(static_cast<std::size_t>(count));
      for (Entry& entry : frame.entries) in.get(entry.live), in.get(entry.column);
    }
    const auto left = state.last(in.left());
    rest.assign(left.begin(), left.end());
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    ByteWriter to(&out);
    to.put(next_index), to.put(length), to.put(original), to.put(given_begin), to.put(given_end);
    to.put(static_cast<std::uint64_t>(columns.size()));
    for (const Column& c : columns) {
      to.put(c.live), to.put(c.ordinal), to.put(c.first), to.put(c.base), to.put(c.used);
      to.put_values(std::span<const std::uint32_t>(c.offsets));
    }
    for (const Run& run : runs) to.put(run.next_ordinal), to.put(run.tail);
    to.put(static_cast<std::uint32_t>(frames.size()));
    for (const Frame& frame : frames) {
      to.put(frame.origin), to.put(frame.rotation), to.put(frame.run), to.put(frame.tokens);
      to.put(static_cast<std::uint64_t>(frame.entries.size()));
      for (const Entry& entry : frame.entries) to.put(entry.live), to.put(entry.column);
    }
    out.insert(out.end(), rest.begin(), rest.end());
    return out;
  }
};

}  // namespace kvasir::test
