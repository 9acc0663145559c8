#include "client/demo/screen.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace gpumem::demo {
namespace {

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kPlain = "\x1b[0m";

}  // namespace

Screen::Screen() {
  const char* no_colour = std::getenv("NO_COLOR");
  colour_ = ::isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
}

void Screen::Line(const char* colour, const std::string& text) {
  if (colour_ && colour != nullptr) {
    std::printf("%s%s%s\n", colour, text.c_str(), kPlain);
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void Screen::Title(const std::string& text) { Line(kBold, text); }

void Screen::Chapter(const std::string& text) {
  std::printf("\n");
  Line(kBold, std::to_string(++chapter_) + "  " + text);
}

void Screen::Say(const std::string& text) { Line(nullptr, "   " + text); }

void Screen::Check(bool held, const std::string& text) {
  const std::string mark = held ? "✓" : "✗";
  if (colour_) {
    Line(nullptr, std::string("   ") + (held ? kGreen : kRed) + mark + kPlain + " " + text);
  } else {
    Line(nullptr, "   " + mark + " " + text);
  }
}

void Screen::Command(const std::string& command, const std::string& output) {
  Line(kBold, "   $ " + command);
  for (std::size_t from = 0; from < output.size();) {
    const std::size_t end = output.find('\n', from);
    Line(kDim, "     " + output.substr(from, end - from));
    from = end == std::string::npos ? output.size() : end + 1;
  }
}

void Screen::Summary(bool good, const std::string& text) {
  std::printf("\n");
  Line(good ? kGreen : kRed, text);
}

std::string Bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + " " + kUnits[unit];
}

std::string Milliseconds(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, ms < 1000 ? "%.0f ms" : "%.1f s", ms < 1000 ? ms : ms / 1000);
  return text;
}

std::string Count(std::uint64_t n, const char* one, const char* many) {
  return std::to_string(n) + " " + (n == 1 ? one : many);
}

}  // namespace gpumem::demo
