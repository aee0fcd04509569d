<?php
/** Edits pages 1 to 30. */

$IP = getenv( 'MW_INSTALL_PATH' ) ?: '/usr/share/mediawiki';
require_once "$IP/maintenance/Maintenance.php";

use MediaWiki\MediaWikiServices;
use MediaWiki\Revision\SlotRecord;

class EditPages extends Maintenance {
	public function execute() {
		$user = User::newSystemUser( 'Editor', [ 'steal' => true ] );
		for ( $n = 1; $n <= 30; $n++ ) {
			$page = MediaWikiServices::getInstance()->getWikiPageFactory()
				->newFromTitle( Title::newFromText( "Page $n" ) );
			$updater = $page->newPageUpdater( $user );
			$updater->setContent( SlotRecord::MAIN, new WikitextContent( "[[Page $n]]" ) );
			$updater->saveRevision( CommentStoreComment::newUnsavedComment( 'test' ) );
		}
	}
}

$maintClass = EditPages::class;
require_once RUN_MAINTENANCE_IF_MAIN;
