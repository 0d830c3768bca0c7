/-! # The larger of two numbers, once more -/

namespace Sample.MaxAgain

/-- The larger number. -/
def larger (a b : Nat) : Nat := if a ≤ b then b else a

theorem larger_of_le {a b : Nat} (h : a ≤ b) : larger a b = b := by
  unfold larger
  exact if_pos h

theorem larger_of_lt {a b : Nat} (h : b < a) : larger a b = a := by
  unfold larger
  exact if_neg (Nat.not_le.mpr h)

theorem left_le_larger (a b : Nat) : a ≤ larger a b := by
  unfold larger
  split <;> omega

theorem right_le_larger (a b : Nat) : b ≤ larger a b := by
  unfold larger
  split <;> omega

theorem larger_comm (a b : Nat) : larger a b = larger b a := by
  unfold larger
  split <;> split <;> omega

theorem larger_assoc (a b c : Nat) : larger (larger a b) c = larger a (larger b c) := by
  unfold larger
  split <;> split <;> (try split) <;> (try split) <;> omega

theorem larger_self (a : Nat) : larger a a = a :=
  larger_of_le (Nat.le_refl a)

theorem larger_le_iff (a b c : Nat) : larger a b ≤ c ↔ a ≤ c ∧ b ≤ c := by
  unfold larger
  split <;> omega

end Sample.MaxAgain
