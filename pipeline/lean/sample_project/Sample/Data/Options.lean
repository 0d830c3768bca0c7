/-! # Options -/

namespace Sample.Options

/-- The value, or the given number. -/
def orElse (d : Nat) : Option Nat → Nat
  | none => d
  | some n => n

@[simp] theorem orElse_none (d : Nat) : orElse d none = d := rfl

@[simp] theorem orElse_some (d n : Nat) : orElse d (some n) = n := rfl

theorem orElse_eq (d : Nat) (o : Option Nat) : orElse d o = o.getD d := by
  cases o <;> rfl

theorem orElse_le {d m : Nat} (hd : d ≤ m) : ∀ {o : Option Nat}, (∀ n, o = some n → n ≤ m) →
    orElse d o ≤ m
  | none, _ => hd
  | some n, h => h n rfl

theorem orElse_map (f : Nat → Nat) (d : Nat) (o : Option Nat) :
    orElse (f d) (o.map f) = f (orElse d o) := by
  cases o with
  | none => rfl
  | some n => rfl

end Sample.Options
