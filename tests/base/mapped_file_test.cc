#include "base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/input_text.h"
#include "support/file_size_limit.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string text_of(const MappedFile& file) {
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string name = (fs::temp_directory_path() / "kvasir-base-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
  }
  ~FileTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string make(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string content(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }

  fs::path folder_;
};

TEST_F(FileTest, MapsWhatIsThere) {
  const std::string big(100000, 'x');
  for (const std::string& text : {std::string("hello\0world", 11), std::string(), big}) {
    const Result<MappedFile> file = MappedFile::open(make("a", text));
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(text_of(*file), text);
    EXPECT_EQ(file->path(), path("a"));
  }
}

TEST_F(FileTest, MapErrors) {
  const Result<MappedFile> missing = MappedFile::open(path("none"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find(path("none")), std::string::npos);
  EXPECT_EQ(MappedFile::open(folder_.string()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::open("/dev/null").status().code(), StatusCode::kInvalidArgument);
  make("file", "x");
  EXPECT_EQ(MappedFile::open(path("file/below")).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::open("").status().code(), StatusCode::kNotFound);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(path("pipe")).status().code(), StatusCode::kInvalidArgument)
      << "and without waiting for a writer";
}

TEST_F(FileTest, MappingsMove) {
  Result<MappedFile> a = MappedFile::open(make("a", "first"));
  Result<MappedFile> b = MappedFile::open(make("b", "second"));
  ASSERT_TRUE(a.ok() && b.ok());
  MappedFile moved = std::move(*a);
  EXPECT_EQ(text_of(moved), "first");
  EXPECT_TRUE(a->bytes().empty());
  moved = std::move(*b);
  EXPECT_EQ(text_of(moved), "second");
  EXPECT_EQ(moved.path(), path("b"));
}

TEST_F(FileTest, ReleasedPagesReadTheSame) {
  std::string text(100000, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  const Result<MappedFile> file = MappedFile::open(make("a", text));
  ASSERT_TRUE(file.ok());
  file->release(0, text.size());
  file->release(5000, 20000);
  file->release(99999, 1);
  file->release(0, 0);
  file->release(90000, 1000000);
  EXPECT_EQ(text_of(*file), text);
}

TEST_F(FileTest, ReadsWholeFiles) {
  const std::string text(200000, 'y');
  make("a", text);
  const Result<std::string> exact = read_file(path("a"), text.size());
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  EXPECT_EQ(*exact, text);
  EXPECT_EQ(*read_file(make("empty", ""), 0), "");
  EXPECT_EQ(*read_file("/dev/null", 10), "");
}

TEST_F(FileTest, ReadErrors) {
  make("a", "12345");
  EXPECT_EQ(read_file(path("a"), 4).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(read_file("/dev/zero", 1 << 20).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(read_file(path("none"), 4).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_file(folder_.string(), 4).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileTest, ReadsStandardInput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "typed", 5), 5);
  ::close(ends[1]);
  const int before = ::dup(STDIN_FILENO);
  ::dup2(ends[0], STDIN_FILENO);
  ::close(ends[0]);
  const Result<std::string> text = read_file("-", 100);
  EXPECT_NE(::fcntl(STDIN_FILENO, F_GETFD), -1) << "standard input is left open";
  if (before >= 0) {
    ::dup2(before, STDIN_FILENO);
    ::close(before);
  }
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "typed");
}

TEST_F(FileTest, WritesAndReplaces) {
  const std::string big(300000, 'z');
  for (const std::string& text : {std::string("one"), std::string(), big, std::string("two")}) {
    ASSERT_TRUE(write_file(path("a"), as_bytes(text)).ok());
    EXPECT_EQ(content("a"), text);
    EXPECT_EQ(files(), 1u) << "no temporary file stays";
  }
}

TEST_F(FileTest, AReplacedFileStaysPrivate) {
  make("a", "secret");
  fs::permissions(path("a"), fs::perms::owner_read | fs::perms::owner_write);
  ASSERT_TRUE(write_file(path("a"), as_bytes("new")).ok());
  EXPECT_EQ(fs::status(path("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(FileTest, AFailedWriteKeepsTheOldFile) {
  make("a", "precious");
  const std::string text(100000, 'n');
  Status status;
  {
    test::FileSizeLimit limit(4096);
    status = write_file(path("a"), as_bytes(text));
  }
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(path("a")), std::string::npos) << status.message();
  EXPECT_EQ(content("a"), "precious");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, MissingFoldersAndFoldersInTheWay) {
  EXPECT_EQ(write_file(path("none/a"), as_bytes("x")).code(), StatusCode::kNotFound);
  make("file", "x");
  EXPECT_EQ(write_file(path("file/a"), as_bytes("x")).code(), StatusCode::kInvalidArgument);
  fs::create_directory(path("folder"));
  EXPECT_EQ(write_file(path("folder"), as_bytes("x")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(files(), 2u);
  EXPECT_TRUE(fs::is_directory(path("folder")));
}

// Links to devices, so that not even a broken write_file run by root replaces a device.
TEST_F(FileTest, DevicesAreWrittenNotReplaced) {
  fs::create_symlink("/dev/null", path("null"));
  EXPECT_TRUE(write_file(path("null"), as_bytes("x")).ok());
  EXPECT_TRUE(fs::is_symlink(path("null")));
  fs::create_symlink("/dev/full", path("full"));
  EXPECT_EQ(write_file(path("full"), as_bytes("x")).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(fs::is_symlink(path("full")));
  EXPECT_EQ(files(), 2u);
}

TEST_F(FileTest, LinksAreFollowedAndStay) {
  make("target", "old");
  fs::create_symlink("target", path("link"));
  ASSERT_TRUE(write_file(path("link"), as_bytes("new")).ok());
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content("target"), "new");
}

// What check_writable says is what write_file then does, and it leaves no trace.
TEST_F(FileTest, WhetherAFileCouldBeWritten) {
  make("file", "precious");
  fs::create_directory(path("folder"));
  fs::create_symlink("/dev/null", path("null"));
  fs::create_symlink("file", path("link"));
  fs::create_symlink("nowhere/else", path("broken"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(check_writable(path("pipe")).ok());
  const std::size_t before = files();
  for (const char* good : {"new", "file", "null", "link"}) {
    EXPECT_TRUE(check_writable(path(good)).ok()) << good;
    EXPECT_EQ(files(), before) << good;
  }
  EXPECT_EQ(content("file"), "precious");
  for (const char* bad : {"none/a", "file/a", "folder"}) {
    const Status status = check_writable(path(bad));
    EXPECT_EQ(status.code(), write_file(path(bad), as_bytes("x")).code()) << bad;
    EXPECT_FALSE(status.ok()) << bad;
    EXPECT_NE(status.message().find(path(bad)), std::string::npos) << status.message();
  }
  EXPECT_EQ(check_writable("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(files(), before);
  // A temporary file that is there already, perhaps another process's, stays.
  make("other.partial", "theirs");
  EXPECT_TRUE(check_writable(path("other")).ok());
  EXPECT_EQ(content("other.partial"), "theirs");
}

TEST_F(FileTest, InputTextIsTheWholeFile) {
  const std::string text("line\n\0end", 9);
  auto input = InputText::open(make("text", text), text.size());
  ASSERT_TRUE(input.ok()) << input.status().message();
  const InputText moved = std::move(*input);
  EXPECT_EQ(moved.text(), text);
  const auto empty = InputText::open(make("empty", ""), 0);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->text(), "");
}

// A file of the system says that it has no size; a pipe has none.
TEST_F(FileTest, InputTextOfWhatCannotBeMappedIsRead) {
  const auto limits = InputText::open("/proc/self/limits", 1 << 20);
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  EXPECT_NE(limits->text().find("Max address space"), std::string::npos);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path("pipe")) << "through a pipe"; });
  const auto piped = InputText::open(path("pipe"), 100);
  writer.join();
  ASSERT_TRUE(piped.ok()) << piped.status().message();
  EXPECT_EQ(piped->text(), "through a pipe");
}

TEST_F(FileTest, InputTextHasALimit) {
  const std::string name = make("text", "12345");
  EXPECT_TRUE(InputText::open(name, 5).ok());
  const Status larger = InputText::open(name, 4).status();
  EXPECT_EQ(larger.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(larger.message(), "'" + name + "' is larger than the 4 bytes accepted here; split it");
  EXPECT_EQ(InputText::open("/proc/self/limits", 4).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(InputText::open(path("missing"), 4).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(InputText::open(folder_.string(), 4).ok());
}

}  // namespace
}  // namespace kvasir
