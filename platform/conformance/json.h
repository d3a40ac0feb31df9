// The part of JSON that the kit needs: it reads expectations and reports, and writes reports. Written here because the
// kit has to build on an accelerator machine that has a compiler and nothing else.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace concord::conformance {

// A JSON value: null, a boolean, a number, a string, a list or an object (whose members keep their order).
class Json {
 public:
  enum class Kind { kNull, kBool, kNumber, kText, kList, kObject };

  Json() = default;
  Json(bool value) : kind_(Kind::kBool), number_(value ? 1 : 0) {}
  Json(double value) : kind_(Kind::kNumber), number_(value) {}
  Json(int value) : Json(static_cast<double>(value)) {}
  Json(std::string value) : kind_(Kind::kText), text_(std::move(value)) {}
  Json(const char* value) : Json(std::string(value)) {}
  static Json list() { return Json(Kind::kList); }
  static Json object() { return Json(Kind::kObject); }

  // Throws std::runtime_error with the line and what was expected there.
  static Json parse(const std::string& text);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  double number() const { return number_; }
  const std::string& text() const { return text_; }
  const std::vector<Json>& items() const { return items_; }
  const std::vector<std::pair<std::string, Json>>& members() const { return members_; }

  // The member called |name|; a null value if there is none.
  const Json& operator[](const std::string& name) const;

  void append(Json value) { items_.push_back(std::move(value)); }
  void set(const std::string& name, Json value) { members_.emplace_back(name, std::move(value)); }

  // One line, or indented by |indent| spaces per level if it is not 0.
  std::string write(int indent = 0, int level = 0) const;

 private:
  explicit Json(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kNull;
  double number_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace concord::conformance
