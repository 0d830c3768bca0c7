/-!
# Counting in lists

A small theory of `count`, written so that statements and proofs take many shapes.
-/

namespace Sample

/-- How often `a` occurs in a list. -/
def count (a : Nat) : List Nat → Nat
  | [] => 0
  | b :: rest => (if b = a then 1 else 0) + count a rest

@[simp]
theorem count_nil (a : Nat) : count a [] = 0 :=
  rfl

theorem count_cons (a b : Nat) (rest : List Nat) :
    count a (b :: rest) = (if b = a then 1 else 0) + count a rest :=
  rfl

/-- The head counts itself. -/
@[simp] theorem count_cons_self (a : Nat) (rest : List Nat) :
    count a (a :: rest) = 1 + count a rest := by
  simp [count_cons]

theorem count_cons_of_ne {a b : Nat} (h : b ≠ a) (rest : List Nat) :
    count a (b :: rest) = count a rest := by
  -- the branch is decided by `h`
  simp [count_cons, h]

/-- Counting is additive. -/
theorem count_append (a : Nat) : ∀ xs ys : List Nat, count a (xs ++ ys) = count a xs + count a ys
  | [], ys => by simp
  | x :: xs, ys => by
    simp only [List.cons_append, count_cons]
    rw [count_append a xs ys]
    omega

theorem count_le_length (a : Nat) (xs : List Nat) : count a xs ≤ xs.length := by
  induction xs with
  | nil => simp
  | cons x xs ih =>
    rw [count_cons, List.length_cons]
    split
    · omega
    · omega

-- theorem count_wrong (a : Nat) : count a [a] = 2 := rfl

/- A commented-out attempt, with a nested remark /- like this one -/:
theorem count_reverse_wrong (a : Nat) (xs : List Nat) : count a xs.reverse = 0 := by
  simp
-/

theorem count_reverse (a : Nat) (xs : List Nat) : count a xs.reverse = count a xs := by
  induction xs with
  | nil => rfl
  | cons x xs ih =>
    rw [List.reverse_cons, count_append, ih, count_cons, count_cons, count_nil]
    omega

theorem count_replicate (a n : Nat) : count a (List.replicate n a) = n := by
  induction n with
  | zero => rfl
  | succ n ih => rw [List.replicate_succ, count_cons_self, ih]; omega

theorem count_eq_zero {a : Nat} {xs : List Nat} (h : a ∉ xs) : count a xs = 0 := by
  induction xs with
  | nil => rfl
  | cons x xs ih =>
    have hx : x ≠ a := fun e => h (by simp [e])
    have hrest : a ∉ xs := fun m => h (List.mem_cons_of_mem x m)
    rw [count_cons_of_ne hx, ih hrest] -- both facts are needed

end Sample
