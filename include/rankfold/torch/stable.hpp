// SPDX-License-Identifier: Apache-2.0
// The collectives as PyTorch ops, for torch's stable ABI: a library that is built once runs with
// torch 2.10 and newer. In exactly one source file of it:
//
//     #include <rankfold/torch/stable.hpp>
//     RANKFOLD_TORCH_STABLE_LIBRARY(my_namespace)
//
// The ops have the names and schemas of rankfold/torch.hpp. What the stable ABI cannot do:
// gradients (an op refuses a tensor that requires them), tags, and an exception type of its own for
// what cannot be traced. See docs/torch.md.
#pragma once

#if !__has_include(<torch/csrc/stable/c/shim.h>)
#  error \
      "rankfold/torch/stable.hpp needs the headers of PyTorch 2.10 or newer: <torch/csrc/stable/c/shim.h> is not in the include path"
#endif

// As in torch/library.hpp: two extensions in one process share no state.
#ifndef RANKFOLD_NAMESPACE_ATTRIBUTES
#  define RANKFOLD_NAMESPACE_ATTRIBUTES __attribute__((visibility("hidden")))
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "rankfold/detail/config.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/torch/argument.hpp"
#include "rankfold/torch/collectives.hpp"
#include "rankfold/torch/group.hpp"
#include "rankfold/torch/loaded_once.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/rows.hpp"
#include "rankfold/torch/stable_values.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops::stable {

/// A part of a namespace's registration, undone when the library is closed.
class registration {
 public:
  /// Ops are defined; or, with a dispatch key, implemented for that key.
  registration(const char* library, const char* key = nullptr) {
    if (key == nullptr) {
      check(aoti_torch_library_init_fragment(library, __FILE__, __LINE__, &handle_),
            "aoti_torch_library_init_fragment");
    } else {
      check(aoti_torch_library_init_impl(library, key, __FILE__, __LINE__, &handle_),
            "aoti_torch_library_init_impl");
    }
  }
  registration(const registration&) = delete;
  registration& operator=(const registration&) = delete;
  ~registration() { aoti_torch_delete_library_object(handle_); }

  bool try_define(const std::string& schema) {
    return aoti_torch_library_def(handle_, schema.c_str()) == AOTI_TORCH_SUCCESS;
  }
  void define(const std::string& schema) {
    if (!try_define(schema)) refuse("rankfold: torch refused to define ", schema);
  }
  template <void (*Kernel)(arguments)>
  void implement(const std::string& op) {
    check(torch_library_impl(handle_, op.c_str(), &boxed<Kernel>, TORCH_ABI_VERSION),
          "torch_library_impl");
  }

 private:
  TorchLibraryHandle handle_ = nullptr;
};

/// All of a namespace's.
struct registrations {
  explicit registrations(const char* library)
      : schemas(library),
        cpu(library, "CPU"),
        meta(library, "Meta"),
        composite(library, "CompositeImplicitAutograd"),
        any(library, "CompositeExplicitAutograd"),
        negative(library, "Negative") {}

  registration schemas, cpu, meta, composite, any, negative;
};

// --- what ops ask of tensors, as in torch/tensor.hpp ---

/// Whether a gradient is asked for. There is none to give here, and nothing in the stable ABI that
/// says it: so by what torch makes of a view of the tensor. Where autograd is switched off, as when
/// a compiled graph is traced, a tensor that is no result of an op ("leaf") cannot be told.
inline bool needs_gradient(const tensor& x, dtype type) {
  const bool floating = supports(reduction::avg, type);
  if (!floating || !aoti_torch_grad_mode_is_enabled()) return false;
  const auto is_leaf = [](const tensor& t) {
    return arguments::as_bool(call_with("aten::is_leaf", "", t));
  };
  return !is_leaf(x) || !is_leaf(tensor_from("aten::alias", "", x));
}

/// The element type of a collective's buffer, which `name` is for messages; refuses one that it
/// cannot be. Kernels are for CPU and Meta, and torch itself refuses other devices; but composites
/// come before kernels.
template <class Where>
dtype element_type(const tensor& x, const char* name, Where&& where) {
  const std::int32_t device = x.device_type();
  if (x.layout() != aoti_torch_layout_strided() ||
      (device != aoti_torch_device_type_cpu() && device != aoti_torch_device_type_meta())) {
    refuse(where(), ": ", name, " is a tensor of layout ", name_of_layout(x.layout()),
           " on a device of torch's type ", device,
           ", expected a dense (strided) tensor on cpu, which is type ",
           aoti_torch_device_type_cpu());
  }
  const std::optional<dtype> type = dtype_of(x.type());
  if (!type) refuse_dtype(name, name_of_type(x.type()), where);
  if (needs_gradient(x, *type)) {
    refuse(where(), ": ", name,
           " requires grad, and this library, built for torch's stable ABI, has ",
           "no gradients, expected ", name,
           ".detach() or torch.no_grad(); for training, build the ", "ops with rankfold/torch.hpp");
  }
  return *type;
}

/// Checks that a tensor can be written to.
template <class Where>
void check_writable(const tensor& x, const char* name, Where&& where) {
  if (!x.contiguous()) check_apart(x.sizes(), x.strides(), name, where);
}

template <class Where>
void check_out_dtype(const tensor& out, const tensor& x, Where&& where) {
  if (out.type() == x.type()) return;
  refuse_out_dtype(name_of_type(out.type()), name_of_type(x.type()), where);
}

/// Checks that `out` can take a result of that shape, of the dtype of `x`.
template <class Where>
void check_out(const tensor& out, std::span<const std::int64_t> shape, const tensor& x,
               Where&& where) {
  element_type(out, "out", where);
  check_writable(out, "out", where);
  check_out_dtype(out, x, where);
  check_out_sizes(out.sizes(), shape, where);
}

template <class Where>
void step_order(const tensor& order, Where&& where) {
  if (order.type() != aoti_torch_dtype_int64() || order.count() != 1 ||
      order.device_type() != aoti_torch_device_type_cpu()) {
    refuse_order(order.count(), name_of_type(order.type()),
                 "a device of torch's type " + std::to_string(order.device_type()), where);
  }
  torch_ops::step_order(*static_cast<std::int64_t*>(order.mutable_data()));
}

/// A contiguous copy of `x`, which is not contiguous.
inline tensor contiguous_copy(const tensor& x) {
  return tensor_from("aten::contiguous", "", x,
                     arguments::value(aoti_torch_memory_format_contiguous_format()));
}

/// A new contiguous tensor of the shape of `x`, whose sizes may be symbols.
inline tensor empty_like(const tensor& x, std::int32_t type) {
  const StableIValue none = arguments::none();
  return tensor_from(
      "aten::empty_like", "", x, arguments::optional(arguments::value(type)), none, none, none,
      arguments::optional(arguments::value(aoti_torch_memory_format_contiguous_format())));
}

/// A new contiguous tensor on cpu.
inline tensor empty(std::span<const std::int64_t> shape, std::int32_t type) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= (std::max)(shape[d], std::int64_t{1});
  }
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_empty_strided(static_cast<std::int64_t>(shape.size()), shape.data(),
                                 strides.data(), type, aoti_torch_device_type_cpu(), 0, &handle),
        "aoti_torch_empty_strided");
  return tensor(handle);
}

/// Has the shape of `x`, but for the number of rows; sizes may be symbols. For its shape alone.
inline tensor with_rows(const tensor& x, std::int64_t rows) {
  // A sum over the rows is one row, whatever there was; of a type that has sums.
  const tensor row = tensor_from(
      "aten::sum", "dim_IntList", empty_like(x, aoti_torch_dtype_float32()),
      arguments::optional(arguments::list({0})), arguments::value(true), arguments::none());
  std::vector<std::int64_t> sizes(x.dims(), -1);
  sizes.front() = rows;
  return tensor_from("aten::expand", "", row, arguments::list(sizes), arguments::value(false));
}

/// The same with as many rows as the result of a collective whose blocks are even.
inline tensor with_even_rows(all_gather_op, const tensor& x, std::int64_t ranks) {
  std::vector<std::int64_t> times((std::max)(x.dims(), std::size_t{1}), 1);
  times.front() = ranks;
  return tensor_from("aten::repeat", "", x, arguments::list(times));
}
inline tensor with_even_rows(reduce_scatter_op, const tensor& x, std::int64_t ranks) {
  return tensor_from("aten::slice", "Tensor", x, arguments::value(std::int64_t{0}),
                     arguments::none(), arguments::none(), arguments::value(ranks));
}
inline tensor with_even_rows(all_to_all_op, const tensor& x, std::int64_t) { return x.again(); }

inline void copy_to(const tensor& x, const tensor& values) {
  tensor_from("aten::copy_", "", x, arguments::value(values.again().release()),
              arguments::value(false));
}

/// `x` has been written to, or, where it is not contiguous, `values` are to be.
inline void written(const tensor& x, const tensor& values) {
  if (!x.contiguous()) return copy_to(x, values);
  // Autograd learns of it by an op that writes to a tensor and changes nothing.
  tensor_from("aten::transpose_", "", x, arguments::value(std::int64_t{0}),
              arguments::value(std::int64_t{0}));
}

/// The values of a tensor in contiguous memory: its own, or that of a copy.
inline tensor contiguous_values(const tensor& x) {
  return x.contiguous() ? x.again() : contiguous_copy(x);
}

/// Calls `collective(in, out)` with the values of `x` and the memory of a new tensor of that shape,
/// which it returns.
template <class Collective>
tensor out_of_place(const tensor& x, std::span<const std::int64_t> shape, Collective&& collective) {
  tensor out = empty(shape, x.type());
  collective(contiguous_values(x).data(), out.mutable_data());
  return out;
}

/// The same for what can be done in place: where there is a copy of `x`, it takes the result.
template <class Collective>
tensor out_of_place(const tensor& x, Collective&& collective) {
  if (x.contiguous()) return out_of_place(x, x.sizes(), collective);
  tensor out = contiguous_copy(x);
  void* data = out.mutable_data();
  collective(data, data);
  return out;
}

/// Calls `collective(in, out)`, both the same, with the values of `x`, which holds the result
/// afterwards.
template <class Collective>
void in_place(const tensor& x, Collective&& collective) {
  const tensor values = contiguous_values(x);
  void* data = values.mutable_data();
  collective(data, data);
  written(x, values);
}

/// Calls `collective(in, out)` with the values of `x`; `out` holds the result afterwards.
template <class Collective>
void into(const tensor& out, const tensor& x, Collective&& collective) {
  const tensor result = out.contiguous() ? out.again() : empty(out.sizes(), out.type());
  collective(contiguous_values(x).data(), result.mutable_data());
  written(out, result);
}

// --- ops, as in torch/overload.hpp and torch/collective.hpp ---

struct ordered {
  static constexpr const char* name = "";
  static constexpr bool has_order = true;
  static constexpr bool traceable = true;
};
/// Has no Meta kernel: so torch.compile breaks the graph.
struct eager {
  static constexpr const char* name = "eager";
  static constexpr bool has_order = false;
  static constexpr bool traceable = false;
};
struct unordered {
  static constexpr const char* name = "unordered";
  static constexpr bool has_order = false;
  static constexpr bool traceable = true;
};

template <class Overload>
tensor take_order(arguments& a) {
  return Overload::has_order ? a.next_tensor() : tensor();
}

/// A parameter of a description (torch/op.hpp), as a kernel holds it.
template <class T>
struct parameter;
template <>
struct parameter<std::string_view> {
  explicit parameter(arguments& a) : value(a.next_text()) {}
  std::string_view described() const { return value; }
  StableIValue again() const { return arguments::text(value); }
  std::string value;
};
template <>
struct parameter<std::int64_t> {
  explicit parameter(arguments& a) : value(a.next_int()) {}
  std::int64_t described() const { return value; }
  StableIValue again() const { return arguments::value(value); }
  std::int64_t value;
};
template <>
struct parameter<rows_argument> {
  explicit parameter(arguments& a) : value(a.next_optional_list()) {}
  std::optional<row_list<std::int64_t>> described() const {
    if (!value) return std::nullopt;
    return row_list<std::int64_t>(*value);
  }
  StableIValue again() const {
    return value ? arguments::optional(arguments::list(*value)) : arguments::none();
  }
  std::optional<std::vector<std::int64_t>> value;
};

/// `Op` describes a collective (torch/op.hpp).
template <class Op, class Library, class Overload, class Arguments = typename Op::arguments>
struct collective_ops;

template <class Op, class Library, class Overload, class... Arguments>
struct collective_ops<Op, Library, Overload, types<Arguments...>> {
  static void define(registrations& r) {
    define_forms<Op>(Overload::has_order ? order_argument('b') : "",
                     Overload::traceable ? "()" : "int",
                     [&](std::string_view op, const std::string& signature) {
                       r.schemas.define(overload_name<Overload>(op) + signature);
                     });
    const std::string functional = overload_name<Overload>(Op::name);
    const std::string core = overload_name<Overload>(core_name<Op>());
    const std::string writing = overload_name<Overload>(Op::writing_name);
    r.cpu.template implement<&functional_cpu>(functional);
    r.cpu.template implement<&core_cpu>(core);
    r.negative.template implement<&core_negative>(core);
    if constexpr (Overload::traceable) {
      r.meta.template implement<&functional_meta>(functional);
      r.meta.template implement<&core_meta>(core);
      r.composite.template implement<&composite>(writing);
    } else {
      r.cpu.template implement<&writing_cpu>(writing);
    }
  }

 private:
  struct functional_form {
    static constexpr const char* name = Op::name;
    static constexpr bool writes = false;
  };
  struct writing_form {
    static constexpr const char* name = Op::writing_name;
    static constexpr bool writes = true;
  };

  /// The arguments of a call, in the schema's order.
  template <class Form>
  struct given {
    static constexpr bool has_out = Form::writes && !Op::keeps_shape;

    explicit given(arguments a)
        : out(has_out ? a.next_tensor() : tensor()),
          x(a.next_tensor()),
          order(take_order<Overload>(a)),
          parameters{parameter<Arguments>(a)...},
          group(a.next_text()),
          tag(a.next_int()) {}

    /// How messages begin, when it is asked.
    auto where() const {
      return [this] { return groups<Library>::where(Form::name, group); };
    }
    const tensor& written() const { return has_out ? out : x; }

    /// What can be said of a call before there are values, and shapes that must hold for all.
    dtype check() const {
      const dtype type = element_type(x, "x", where());
      if constexpr (has_out) {
        element_type(out, "out", where());
        check_out_dtype(out, x, where());
      }
      if constexpr (Op::reduces) {
        check_operator(parse_reduction(std::get<0>(parameters).described(), where()), type,
                       where());
      }
      return type;
    }

    /// Calls `then(collective, shape)` where all arguments are right, with what makes the
    /// collective and the shape of its result.
    template <class Then>
    void carry_out(Then&& then) const {
      group_type& self = groups<Library>::get(Form::name, group);
      const place here = self.here(Form::name);
      const auto sizes = x.sizes();
      std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
      if constexpr (!Op::keeps_shape) {
        shape.resize((std::max)(shape.size(), std::size_t{1}));
        shape.front() = this->template rows<std::int64_t>(sizes, here);
      }
      const input described{sizes, static_cast<std::size_t>(x.count()),
                            element_type(x, "x", where())};
      const typename Op::call call = std::apply(
          [&](const auto&... p) {
            return typename Op::call(described, here, where(), p.described()...);
          },
          parameters);
      if constexpr (has_out) {
        check_out(out, shape, x, where());
      } else if constexpr (Form::writes) {
        check_writable(x, "x", where());
      }
      const call_options options{.tag = check_tag(tag, where())};
      if constexpr (Overload::has_order) step_order(order, where());
      then(
          [&](const void* in, void* result) {
            self.run(Form::name, [&](communicator_type& c) {
              check_place(c, here);
              call(c, in, result, options);
            });
          },
          std::span<const std::int64_t>(shape));
    }

    template <class Int>
    Int rows(row_list<Int> shape, const place& here) const {
      return std::apply(
          [&](const auto&... p) {
            return Op::template rows<Int>(shape, here, where(), p.described()...);
          },
          parameters);
    }

    tensor out, x, order;
    std::tuple<parameter<Arguments>...> parameters;
    std::string group;
    std::int64_t tag;
  };
  using group_type = torch_ops::group;

  static void functional_cpu(arguments a) {
    const given<functional_form> g(a);
    g.carry_out([&](auto&& collective, std::span<const std::int64_t> shape) {
      if constexpr (Op::keeps_shape) {
        a.result(out_of_place(g.x, collective));
      } else {
        a.result(out_of_place(g.x, shape, collective));
      }
    });
  }

  static void write(const given<writing_form>& g) {
    g.carry_out([&](auto&& collective, std::span<const std::int64_t>) {
      if constexpr (Op::keeps_shape) {
        in_place(g.x, collective);
      } else {
        into(g.out, g.x, collective);
      }
    });
  }
  static void core_cpu(arguments a) {
    write(given<writing_form>(a));
    if (!Overload::traceable) a.result(std::int64_t{0});
  }
  static void writing_cpu(arguments a) {
    const given<writing_form> g(a);
    write(g);
    a.result(g.written().again());
  }

  static void functional_meta(arguments a) {
    const given<functional_form> g(a);
    g.check();
    if constexpr (Op::keeps_shape) {
      a.result(empty_like(g.x, g.x.type()));
    } else {
      const place here = groups<Library>::get(Op::name, g.group)
                             .here(Op::name,
                                   ", also before it is traced: the shape of the result "
                                   "depends on the size of the group");
      const std::size_t dims = g.x.dims();
      const bool even =
          std::apply([](const auto&... p) { return (is_even(p) && ...); }, g.parameters);
      if (even) {
        if (dims == 0) g.template rows<std::int64_t>({}, here);  // refuses that, or not
        a.result(empty_like(with_even_rows(Op(), g.x, here.size), g.x.type()));
      } else {
        // The number of rows is that of `sizes`, and those of x, which may be a symbol, do not
        // matter.
        const std::vector<std::int64_t> any(dims, 1);
        a.result(empty_like(with_rows(g.x, g.template rows<std::int64_t>(any, here)), g.x.type()));
      }
    }
  }
  static bool is_even(const parameter<rows_argument>& p) { return !p.value; }
  template <class Other>
  static bool is_even(const Other&) {
    return true;
  }

  static void core_meta(arguments a) { given<writing_form>(a).check(); }

  static void composite(arguments a) {
    const given<writing_form> g(a);
    g.check();
    call_core(g, g.out, g.x);
    a.result(g.written().again());
  }

  /// A tensor is a lazy negative view. torch's own kernel for it takes no op that returns nothing.
  static void core_negative(arguments a) {
    const given<writing_form> g(a);
    const tensor out = g.has_out ? tensor_from("aten::resolve_neg", "", g.out) : tensor();
    const tensor x = tensor_from("aten::resolve_neg", "", g.x);
    call_core(g, out, x);
    copy_to(g.written(), g.has_out ? out : x);
    if (!Overload::traceable) a.result(std::int64_t{0});
  }

  static void call_core(const given<writing_form>& g, const tensor& out, const tensor& x) {
    std::vector<StableIValue> stack;
    if (g.has_out) stack.push_back(arguments::value(out.again().release()));
    stack.push_back(arguments::value(x.again().release()));
    if (Overload::has_order) stack.push_back(arguments::value(g.order.again().release()));
    std::apply([&](const auto&... p) { (stack.push_back(p.again()), ...); }, g.parameters);
    stack.push_back(arguments::text(g.group));
    stack.push_back(arguments::value(g.tag));
    static const std::string core = std::string(Library::name) + "::" + core_name<Op>();
    call_op(core.c_str(), Overload::name, stack.data());
  }
};

/// An op that cannot be traced: its kernel runs without a tensor that says which. torch.compile
/// ends with this error there.
template <class Library, class Op>
void refuse_to_trace(arguments) {
  refuse(Library::name, "::", Op::name,
         ": cannot be traced; call it outside of the compiled function");
}

template <class Library, class Op>
void define_untraceable(registrations& r) {
  r.schemas.define(std::string(Op::name) + Op::schema);
  r.any.template implement<&Op::run>(Op::name);
  r.meta.template implement<&refuse_to_trace<Library, Op>>(Op::name);
}

template <class Library, class Overload>
struct barrier_ops {
  static constexpr const char* name = Overload::has_order ? "barrier" : "barrier.eager";
  static constexpr const char* schema = R"((str group="", int tag=0) -> ())";

  static void define(registrations& r) {
    if constexpr (Overload::has_order) {
      r.schemas.define("barrier(" + order_argument('a') + R"(str group="", int tag=0) -> ())");
      r.cpu.template implement<&run>(name);
      r.meta.template implement<&meta>(name);
    } else {
      define_untraceable<Library, barrier_ops>(r);
    }
  }

  static void run(arguments a) {
    const given g(a);
    group& self = groups<Library>::get("barrier", g.group);
    const auto where = [&] { return self.where("barrier"); };
    const call_options options{.tag = check_tag(g.tag, where)};
    if constexpr (Overload::has_order) step_order(g.order, where);
    self.run("barrier", [&](communicator_type& c) { c.barrier(options); });
  }

 private:
  struct given {
    explicit given(arguments a)
        : order(take_order<Overload>(a)), group(a.next_text()), tag(a.next_int()) {}
    tensor order;
    std::string group;
    std::int64_t tag;
  };
  static void meta(arguments a) { given{a}; }
};

/// One for all groups: collectives block, so that their order matters across groups, too.
/// Made as the library is loaded, and never freed.
inline const tensor& token() {
  static const tensor* const made = [] {
    const std::int64_t one = 1;
    auto* t = new tensor(empty({&one, 1}, aoti_torch_dtype_int64()));
    *static_cast<std::int64_t*>(t->mutable_data()) = 0;
    return t;
  }();
  return *made;
}

/// The ops that are no collectives, as in torch/control.hpp.
template <class Library>
struct control_ops {
  static void define(registrations& r) {
    define_untraceable<Library, init>(r);
    define_untraceable<Library, order>(r);
    define_untraceable<Library, finalize>(r);
    define_untraceable<Library, abort>(r);
    define_untraceable<Library, rank>(r);
    define_untraceable<Library, size>(r);
  }

 private:
  struct init {
    static constexpr const char* name = "init";
    static constexpr const char* schema =
        R"((str group="", int rank=-1, int size=-1, str key="", float timeout=0) -> Tensor?)";
    static void run(arguments a) {
      const std::string group_name = a.next_text();
      const std::int64_t rank = a.next_int();
      const std::int64_t size = a.next_int();
      const std::string key = a.next_text();
      const double timeout = a.next_float();
      check_loaded_once<Library>();
      group& self = groups<Library>::get_or_add(group_name);
      self.join(parse_join_options(rank, size, key, timeout, [&] { return self.where(name); }));
      a.optional_result(token().again());
    }
  };
  struct order {
    static constexpr const char* name = "order";
    static constexpr const char* schema = "() -> Tensor?";
    static void run(arguments a) { a.optional_result(token().again()); }
  };
  struct finalize {
    static constexpr const char* name = "finalize";
    static constexpr const char* schema = R"((str group="") -> ())";
    static void run(arguments a) { groups<Library>::get(name, a.next_text()).leave(); }
  };
  struct abort {
    static constexpr const char* name = "abort";
    static constexpr const char* schema =
        R"((str reason="abort() was called", str group="") -> ())";
    static void run(arguments a) {
      const std::string reason = a.next_text();
      groups<Library>::get(name, a.next_text()).abort(reason);
    }
  };
  struct rank {
    static constexpr const char* name = "rank";
    static constexpr const char* schema = R"((str group="") -> int)";
    static void run(arguments a) {
      a.result(std::int64_t{groups<Library>::get(name, a.next_text()).rank()});
    }
  };
  struct size {
    static constexpr const char* name = "size";
    static constexpr const char* schema = R"((str group="") -> int)";
    static void run(arguments a) {
      a.result(std::int64_t{groups<Library>::get(name, a.next_text()).size()});
    }
  };
};

/// Registers all ops of a namespace, as the library is loaded.
template <class Library>
class library {
 public:
  library() {
    using once = loaded_once<Library>;
    auto made = std::make_unique<registrations>(Library::name);
    const std::string op = once::op;
    if (!made->schemas.try_define(op + "(str library) -> ()")) {
      // Another library has taken the namespace; that one knows now.
      StableIValue stack[] = {arguments::text(once::path())};
      call_op((std::string(Library::name) + "::" + op).c_str(), "", stack);
      std::fprintf(stderr, "%s\n", loaded_twice<Library>().c_str());
      return;
    }
    made->any.template implement<&loaded_again>(op);
    define_collectives(*made, collectives());
    control_ops<Library>::define(*made);
    token();
    made_ = std::move(made);
  }

 private:
  /// The order matters: a call without a token takes the first overload that fits.
  template <class... Op>
  static void define_collectives(registrations& r, types<Op...>) {
    (collective_ops<Op, Library, ordered>::define(r), ...);
    (collective_ops<Op, Library, eager>::define(r), ...);
    (collective_ops<Op, Library, unordered>::define(r), ...);
    barrier_ops<Library, ordered>::define(r);
    barrier_ops<Library, eager>::define(r);
  }

  static void loaded_again(arguments a) { loaded_once<Library>::loaded_again(a.next_text()); }

  std::unique_ptr<registrations> made_;
};

}  // namespace torch_ops::stable

RANKFOLD_END_NAMESPACE

/// Public. Registers rankfold's ops as torch.ops.NAMESPACE, as RANKFOLD_TORCH_LIBRARY does, for
/// every torch from 2.10 on. At file scope, in one source file of one library.
#define RANKFOLD_TORCH_STABLE_LIBRARY(NAMESPACE)                                   \
  RANKFOLD_DETAIL_TORCH_NAMESPACE(NAMESPACE)                                       \
  namespace {                                                                      \
  const ::rankfold::torch_ops::stable::library<rankfold_torch_library_##NAMESPACE> \
      rankfold_torch_registration_##NAMESPACE;                                     \
  }
