// A folder and a server that hold blobs, and the queue in front of them.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "tiers/blob_queue.h"
#include "tiers/disk_store.h"
#include "tiers/faulty_blobs.h"
#include "tiers/redis_store.h"
#include "tiers/small_disk.h"

namespace kvasir::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

BlobKey key_of(std::uint64_t number, std::uint32_t order = 0) {
  return {{7, 7}, {8, 8}, {number, number * 31}, order};
}

std::vector<std::byte> blob_of(std::uint64_t number, std::size_t bytes) {
  std::mt19937_64 random(number);
  std::vector<std::byte> blob(bytes);
  for (std::byte& byte : blob) byte = static_cast<std::byte>(random());
  return blob;
}

std::unique_ptr<BlobStore> open(const std::string& folder, std::uint64_t capacity = 1 << 20,
                                std::vector<std::string>* said = nullptr, std::unique_ptr<BlobFiles> files = nullptr) {
  DiskStoreOptions options{folder, capacity, {}};
  if (said != nullptr) options.warn = [said](const std::string& line) { said->push_back(line); };
  auto store = open_disk_store(options, std::move(files));
  EXPECT_TRUE(store.ok()) << store.status().message();
  return std::move(*store);
}

std::uint64_t size_of(BlobStore& store, const BlobKey& key) {
  return store.sizes(std::span(&key, 1))->front();
}

TEST(DiskStore, HoldsWhatWasWrittenAndOutlivesItsProcess) {
  const TemporaryFolder folder;
  {
    const auto store = open(folder.path());
    for (std::uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(store->write(key_of(i), blob_of(i, 1000 + i)).ok());
    EXPECT_TRUE(store->write(key_of(3), blob_of(30, 500)).ok()) << "in place of the first one";
    store->remove(key_of(4));
  }
  const auto store = open(folder.path());
  EXPECT_EQ(store->usage().blobs, 4u);
  EXPECT_EQ(store->usage().bytes, 1000u + 1001 + 1002 + 500);
  std::vector<std::byte> read(1001);
  EXPECT_TRUE(store->read(key_of(1), read).ok());
  EXPECT_EQ(read, blob_of(1, 1001));
  EXPECT_EQ(size_of(*store, key_of(4)), 0u);
  BlobKey other = key_of(1);
  other.salt = {9, 9};
  EXPECT_EQ(size_of(*store, other), 0u) << "the owner is part of the key";
  EXPECT_FALSE(store->read(other, read).ok());
}

// Random operations against a plain map; what was used longest ago goes, of equals the later part first.
TEST(DiskStore, IsBoundedAndGivesUpWhatWasUsedLongestAgo) {
  const TemporaryFolder folder;
  std::mt19937_64 random(1);
  std::map<std::uint64_t, std::vector<std::byte>> written;
  auto store = open(folder.path(), 20'000);
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t number = random() % 40;
    const BlobKey key = key_of(number);
    if (random() % 3 == 0) {
      written[number] = blob_of(static_cast<std::uint64_t>(i), 500 + random() % 2000);
      ASSERT_TRUE(store->write(key, written[number]).ok());
      ASSERT_EQ(size_of(*store, key), written[number].size());
    } else if (const std::uint64_t size = size_of(*store, key); size > 0) {
      std::vector<std::byte> read(size);
      ASSERT_TRUE(store->read(key, read).ok());
      ASSERT_EQ(read, written[number]);
    }
    ASSERT_LE(store->usage().bytes, 20'000u);
    if (i % 100 == 99) {
      const BlobUsage before = store->usage();
      store.reset();
      store = open(folder.path(), 20'000);
      ASSERT_EQ(store->usage().bytes, before.bytes);
    }
  }
  EXPECT_GT(store->usage().blobs, 5u);
  EXPECT_EQ(store->write(key_of(100), blob_of(1, 20'001)).code(), StatusCode::kResourceExhausted);
  store.reset();
  // Written within a second, so of one age: the front of a text stays longest.
  const TemporaryFolder second;
  store = open(second.path(), 4000);
  for (std::uint32_t part = 0; part < 4; ++part)
    EXPECT_TRUE(store->write(key_of(part, part), blob_of(part, 1000)).ok());
  EXPECT_TRUE(store->write(key_of(50), blob_of(50, 1500)).ok());
  for (std::uint32_t part = 0; part < 4; ++part) EXPECT_EQ(size_of(*store, key_of(part)) > 0, part < 2) << part;
}

TEST(DiskStore, OneProcessAtATime) {
  const TemporaryFolder folder;
  auto store = open(folder.path());
  const auto second = open_disk_store({folder.path(), 1000, {}});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(second.status().message(), testing::AllOf(HasSubstr(folder.path()), HasSubstr("another process")));
  store.reset();
  open(folder.path());
}

TEST(DiskStore, WhatNobodyRefersToIsRemovedWhenItIsOpened) {
  const TemporaryFolder folder;
  open(folder.path())->write(key_of(1), blob_of(1, 1000)).ok();
  std::ofstream(folder.path() + "/parts/" + std::string(32, 'a') + ".part") << "x";
  std::ofstream(folder.path() + "/parts/mine.txt") << "x";
  std::vector<std::string> said;
  {
    const auto store = open(folder.path(), 1 << 20, &said);
    EXPECT_EQ(store->usage().blobs, 1u);
  }
  EXPECT_THAT(said, testing::ElementsAre(HasSubstr("removed 1 files")));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/parts/mine.txt"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/parts/" + std::string(32, 'a') + ".part"));
  // A file that was cut off goes with its row; a catalogue that is none is begun anew.
  std::filesystem::resize_file(folder.path() + "/parts/" + key_of(1).text.hex() + ".part", 10);
  EXPECT_EQ(open(folder.path())->usage().blobs, 0u);
  open(folder.path())->write(key_of(2), blob_of(2, 1000)).ok();
  for (const std::size_t bytes : {10, 5000}) {
    std::ofstream(folder.path() + "/catalogue.db", std::ios::binary) << std::string(bytes, 'z');
    said.clear();
    EXPECT_EQ(open(folder.path(), 1 << 20, &said)->usage().blobs, 0u);
    EXPECT_THAT(said, testing::Contains(HasSubstr("begun anew")));
  }
}

// -- The queue. --

std::shared_ptr<BlobBuffer> buffer_of(const std::vector<std::byte>& bytes) {
  auto buffer = std::make_shared<BlobBuffer>(bytes.size());
  std::ranges::copy(bytes, buffer->bytes().begin());
  return buffer;
}

BlobAnswer next(BlobQueue& queue) {
  for (;;)
    if (auto answers = queue.answers(milliseconds(1000)); !answers.empty()) return std::move(answers.front());
}

TEST(BlobQueue, ReadsAreCheckedAndWhatIsDamagedIsRemoved) {
  const auto content = std::make_shared<FarStore::Content>();
  BlobQueue queue(std::make_unique<FarStore>(content));
  queue.write(1, key_of(1), buffer_of(blob_of(1, 3000)));
  EXPECT_EQ(next(queue).tag, 1u);
  const auto read = [&](Status check) {
    queue.read(2, key_of(1), buffer_of(std::vector<std::byte>(3000)),
               [check](std::span<const std::byte>) { return check; });
    return next(queue);
  };
  const BlobAnswer good = read({});
  EXPECT_TRUE(good.status.ok());
  EXPECT_TRUE(std::ranges::equal(good.buffer->bytes(), blob_of(1, 3000)));
  EXPECT_EQ(read(Status(StatusCode::kDataLoss, "no")).status.code(), StatusCode::kDataLoss);
  // The thread that writes removes it.
  const auto stored = [&] {
    queue.sizes(3, {key_of(1)});
    return next(queue).sizes.front() > 0;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool there = stored();
  while (there && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    there = stored();
  }
  EXPECT_FALSE(there);
}

TEST(BlobQueue, AWriteThatTakesLongDelaysNoRead) {
  const auto content = std::make_shared<FarStore::Content>();
  content->blobs[key_of(1).text.hex()] = blob_of(1, 100);
  std::atomic<int> calls{0};
  std::atomic<bool> read_has_ended{false};
  content->before = [&] {
    if (calls++ > 0) return;
    for (int i = 0; i < 60000 && !read_has_ended; ++i) std::this_thread::sleep_for(milliseconds(1));
  };
  BlobQueue queue(std::make_unique<FarStore>(content));
  queue.write(1, key_of(2), buffer_of(blob_of(2, 100)));
  while (calls == 0) std::this_thread::yield();
  queue.read(2, key_of(1), buffer_of(std::vector<std::byte>(100)), [](auto) { return Status(); });
  EXPECT_EQ(next(queue).tag, 2u) << "the read waited for the write";
  read_has_ended = true;
  EXPECT_EQ(next(queue).tag, 1u);
}

// -- Redis, as far as it goes wrong. What works is checked with a real one (tests/server/prefix_redis_check.py). --

TEST(RedisStore, Addresses) {
  RedisOptions options;
  EXPECT_TRUE(parse_redis_address("cache.example:6380", &options).ok());
  EXPECT_EQ(options.host, "cache.example");
  EXPECT_EQ(options.port, 6380);
  EXPECT_TRUE(parse_redis_address("[::1]:7", &options).ok());
  EXPECT_EQ(options.host, "::1");
  for (const char* wrong :
       {"", ":1", "x", "x:", "x:0", "x:65536", "x:1y", "x: 1", "redis://x:1", "a@b:1", "[]:1", "::"})
    EXPECT_FALSE(parse_redis_address(wrong, &options).ok()) << wrong;
}

// A server that sends these bytes to whoever connects, over and over with pauses, until the client leaves or it ends.
class HostileServer {
 public:
  explicit HostileServer(std::string bytes, milliseconds pause = milliseconds(0))
      : bytes_(std::move(bytes)), pause_(pause) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HostileServer() {
    ending_ = true;
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  int port() const { return port_; }

 private:
  void serve() {
    while (!ending_) {
      const int client = ::accept(socket_, nullptr, nullptr);
      if (client < 0) return;
      while (!ending_) {
        if (::send(client, bytes_.data(), bytes_.size(), MSG_NOSIGNAL) < 0) break;
        std::this_thread::sleep_for(pause_);
      }
      ::close(client);
    }
  }
  std::string bytes_;
  milliseconds pause_;
  int socket_ = -1;
  int port_ = 0;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

RedisOptions quick(int port) {
  RedisOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.connect_timeout = options.ask_timeout = milliseconds(100);
  options.blob_timeout = milliseconds(200);
  options.first_pause = milliseconds(50);
  options.longest_pause = milliseconds(200);
  return options;
}

// The servers go on for ever: only the store's own limits end its calls.
TEST(RedisStore, WhateverAServerSendsEndsInTime) {
  const std::pair<std::string, int> cases[] = {
      {"", 50},                                         // nothing
      {":", 20},                                        // a byte now and then
      {"hello\r\n", 0},                                 // another protocol
      {"$99999999999\r\nabc", 1},                       // more than memory
      {"$100000000\r\n" + std::string(60000, 'x'), 1},  // more than was asked for
      {"$-5\r\n", 1},
      {"*3\r\n*3\r\n*3\r\n*3\r\n*3\r\n*3\r\n*3\r\n*3\r\n*3\r\n*3\r\n*3\r\n", 1},
      {"*2000000000\r\n" + std::string(60000, ':'), 1},  // an array, in place of one value
      {"-ERR no\r\n", 1},
      {":-7\r\n", 1},
      {"$-1\r\n", 1},
  };
  for (const auto& [bytes, pause] : cases) {
    SCOPED_TRACE(bytes.substr(0, 20));
    const HostileServer server(bytes, milliseconds(pause));
    const auto store = make_redis_store(quick(server.port()));
    std::vector<std::byte> into(1000);
    const Status read = store->read(key_of(1), into);
    EXPECT_FALSE(read.ok());
    for (int i = 0; i < 20 && !store->usable(); ++i) std::this_thread::sleep_for(milliseconds(20));
    const auto sizes = store->sizes(std::vector<BlobKey>{key_of(1), key_of(2)});
    if (sizes.ok()) {
      EXPECT_THAT(*sizes, testing::Each(0u));
    }
  }
}

// A port that refuses connections until listen().
class Port {
 public:
  Port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(address.sin_port);
  }
  ~Port() { ::close(socket_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  int number() const { return number_; }
  void listen() const { EXPECT_EQ(::listen(socket_, 8), 0); }
  // Whether a client has connected since the last call.
  bool was_called() const {
    const int client = ::accept(socket_, nullptr, nullptr);
    if (client >= 0) ::close(client);
    return client >= 0;
  }

 private:
  int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int number_ = 0;
};

TEST(RedisStore, OneThatDoesNotAnswerIsLeftAlone) {
  const BlobKey key = key_of(1);
  const Port port;
  for (const bool waits_long : {true, false}) {
    RedisOptions options = quick(port.number());
    if (waits_long) options.first_pause = options.longest_pause = std::chrono::hours(1);
    const auto store = make_redis_store(options);
    EXPECT_TRUE(store->usable()) << "nobody knows yet";
    if (waits_long) {
      EXPECT_FALSE(store->sizes(std::span(&key, 1)).ok());
      EXPECT_FALSE(store->usable());
      port.listen();
      for (int i = 0; i < 1000; ++i) EXPECT_FALSE(store->write(key, blob_of(1, 10)).ok());
      EXPECT_FALSE(port.was_called()) << "fails without asking";
    } else {
      EXPECT_FALSE(store->sizes(std::span(&key, 1)).ok()) << "it listens, and says nothing";
      EXPECT_TRUE(port.was_called());
      for (int i = 0; i < 6000 && !store->usable(); ++i) std::this_thread::sleep_for(milliseconds(10));
      EXPECT_TRUE(store->usable()) << "it is tried again";
      EXPECT_FALSE(store->write(key, blob_of(1, 10)).ok());
      EXPECT_TRUE(port.was_called());
    }
  }
}

}  // namespace
}  // namespace kvasir::test
