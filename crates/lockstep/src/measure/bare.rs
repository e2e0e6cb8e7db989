//! The group that is measured: one that does nothing but the operation.

use c10d::{DebugLevel, GroupOptions, ProcessGroup, Result};

/// A group of the same ranks that do not compare their calls ([`GroupOptions::compare_calls`]), since that costs a message more.
/// A collective of the whole job, like [`ProcessGroup::new_group`].
///
/// # Errors
/// As [`ProcessGroup::new_group`].
pub fn bare(group: &ProcessGroup) -> Result<ProcessGroup> {
    let options = GroupOptions { compare_calls: Some(false), debug: Some(DebugLevel::Off), ..group.options().clone() };
    let made = group.new_group(group.members(), &options)?;
    Ok(made.expect("every rank of the group is a member"))
}
