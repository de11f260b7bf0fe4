; Moves the weights of a library into huge pages; tvmtune/library/huge_pages.py fills in what stands
; between @.
;
; The library's program calls @NAME@(state, weight, ...) on every run. TVM's loader has put the weights
; into pages of 4 KB by then, and a kernel that streams 100 MB of them misses the TLB 25,000 times. The
; first call for a loaded program asks the system to replace these pages (MADV_COLLAPSE, since Linux 6.1).
; It may refuse, and then all stays as it was. The state is a constant of the program, so each time that
; it is loaded has its own: @STATE@ until the first call, then 0.

%Any = type { i32, i32, ptr }         ; TVMFFIAny: type, padding, value
; DLTensor: data, device (type, number), rank, dtype (code, bits, lanes), shape, strides, offset
%Tensor = type { ptr, i32, i32, i32, i8, i8, i16, ptr, ptr, i64 }

@variable = internal constant [19 x i8] c"TVMTUNE_HUGE_PAGES\00"

declare i32 @madvise(ptr, i64, i32)
declare ptr @getenv(ptr)

; The size of a tensor in bytes.
define internal i64 @bytes(ptr %tensor) {
entry:
  %rank_place = getelementptr %Tensor, ptr %tensor, i32 0, i32 3
  %rank = load i32, ptr %rank_place
  %bits_place = getelementptr %Tensor, ptr %tensor, i32 0, i32 5
  %bits = load i8, ptr %bits_place
  %wide = zext i8 %bits to i64
  %each = lshr i64 %wide, 3
  %shape_place = getelementptr %Tensor, ptr %tensor, i32 0, i32 7
  %shape = load ptr, ptr %shape_place
  br label %again
again:
  %axis = phi i32 [ 0, %entry ], [ %next, %more ]
  %size = phi i64 [ %each, %entry ], [ %product, %more ]
  %left = icmp slt i32 %axis, %rank
  br i1 %left, label %more, label %done
more:
  %extent_place = getelementptr i64, ptr %shape, i32 %axis
  %extent = load i64, ptr %extent_place
  %product = mul i64 %size, %extent
  %next = add i32 %axis, 1
  br label %again
done:
  ret i64 %size
}

; Replace the pages of a tensor. Its first and last huge page hold other data, too, usually the tensors
; before and after it; if these cannot be moved, they stay.
define internal void @collapse(ptr %tensor) {
entry:
  %size = call i64 @bytes(ptr %tensor)
  %large = icmp sge i64 %size, @LARGE@
  br i1 %large, label %around, label %done
around:
  %data = load ptr, ptr %tensor
  %start = ptrtoint ptr %data to i64
  %end = add i64 %start, %size
  %low = and i64 %start, -2097152
  %above = add i64 %end, 2097151
  %high = and i64 %above, -2097152
  %all = call i1 @advise(i64 %low, i64 %high)
  br i1 %all, label %done, label %within
within:
  %next = add i64 %start, 2097151
  %inner_low = and i64 %next, -2097152
  %inner_high = and i64 %end, -2097152
  call i1 @advise(i64 %inner_low, i64 %inner_high)
  br label %done
done:
  ret void
}

; Ask for huge pages between two addresses. Returns whether the system gave them.
define internal i1 @advise(i64 %from, i64 %to) {
entry:
  %some = icmp ult i64 %from, %to
  br i1 %some, label %ask, label %nothing
ask:
  %place = inttoptr i64 %from to ptr
  %length = sub i64 %to, %from
  %status = call i32 @madvise(ptr %place, i64 %length, i32 25)  ; MADV_COLLAPSE
  %given = icmp eq i32 %status, 0
  ret i1 %given
nothing:
  ret i1 true
}

; The tensor in an argument: it follows the 24 bytes of TVMFFIObject.
define internal ptr @tensor(ptr %arguments, i32 %index) {
  %place = getelementptr %Any, ptr %arguments, i32 %index, i32 2
  %object = load ptr, ptr %place
  %tensor = getelementptr i8, ptr %object, i64 24
  ret ptr %tensor
}

; Whether the environment lets weights move: TVMTUNE_HUGE_PAGES does not begin with 0.
define internal i1 @allowed() {
entry:
  %value = call ptr @getenv(ptr @variable)
  %unset = icmp eq ptr %value, null
  br i1 %unset, label %yes, label %read
read:
  %first = load i8, ptr %value
  %zero = icmp eq i8 %first, 48
  br i1 %zero, label %no, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

define i32 @__tvm_ffi_@NAME@(ptr %self, ptr %arguments, i32 %count, ptr %result) {
entry:
  %any = icmp sgt i32 %count, 1
  br i1 %any, label %look, label %done
look:
  %type = load i32, ptr %arguments
  %is_tensor = icmp eq i32 %type, 70
  br i1 %is_tensor, label %claim, label %done
claim:
  %state = call ptr @tensor(ptr %arguments, i32 0)
  %place = load ptr, ptr %state
  %swap = cmpxchg ptr %place, i64 @STATE@, i64 0 seq_cst seq_cst
  %first = extractvalue { i64, i1 } %swap, 1
  br i1 %first, label %ask, label %done
ask:
  %allowed = call i1 @allowed()
  br i1 %allowed, label %again, label %done
again:
  %i = phi i32 [ 1, %ask ], [ %next, %again ]
  %tensor = call ptr @tensor(ptr %arguments, i32 %i)
  call void @collapse(ptr %tensor)
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %count
  br i1 %more, label %again, label %done
done:
  ret i32 0
}
